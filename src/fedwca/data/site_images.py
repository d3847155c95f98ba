"""The images of one site: a folder to adapt on, and maybe one with labels to score on."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedwca.data.augment import Transform
from fedwca.data.cache import stored_domain
from fedwca.data.domains import Domain
from fedwca.data.image_files import image_domain
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.data.own_images import numbering, read_domain, warnings_of
from fedwca.data.raw import UNLABELED, Request
from fedwca.errors import UserError
from fedwca.leftovers import sweep
from fedwca.notes import Note, silent

__all__ = ["SitePaths", "site_images"]


class SitePaths(NamedTuple):
    """Where a site's images lie: those to adapt on, those with labels if any, decoded ones."""

    data: Path
    test: Path | None
    cache: Path


def site_images(
    name: str,
    paths: SitePaths,
    classes: tuple[str, ...],
    image_size: int,
    transform: Transform,
    note: Note = silent,
) -> ClientData:
    """What a site holds. Folders in `data` may be sorted by class or not: no label is read there.

    Test images lie as class/*.jpg, by the names of the classes.
    """
    sweep(paths.cache)
    request = Request(paths.data, paths.cache, image_size)
    train = _stored(name, paths.data, (), request, note)
    images = UnlabeledImages(train.images, np.arange(len(train)), transform)
    test = None
    if paths.test is not None:
        found = _stored(f"{name} (test)", paths.test, classes, request, note)
        rows = np.flatnonzero(found.labels != UNLABELED)
        if not len(rows):
            raise UserError(
                f"{paths.test} has no folder that is named like a class ({', '.join(classes[:5])}"
                f"{', …' if len(classes) > 5 else ''}): sort the test images into such folders",
                "its test images are not sorted into folders named like the classes",
            )
        test = LabeledImages(
            UnlabeledImages(found.images, rows, transform), found.labels[rows].copy()
        )
    return ClientData(name, "", images, None, test)


def _stored(
    name: str, folder: Path, classes: tuple[str, ...], request: Request, note: Note
) -> Domain:
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}: give the folder of the site's images",
            "the folder of its images is gone",
        )
    found = read_domain(name, folder)
    number = numbering(classes)
    files = [(file, UNLABELED) for file in found.loose]
    files += [(file, number(label)) for label, group in found.sorted.items() for file in group]
    if not files:
        raise UserError(
            f"there are no images in {folder}: put *.jpg or *.png files there",
            "there are no images in its folder",
        )
    if classes:
        for warning in warnings_of(found, number):
            note(f"warning: {warning}")
    domain = stored_domain(image_domain(name, sorted(files), folder), request, note)
    if not len(domain):
        file, reason = domain.broken[0]
        raise UserError(
            f"no image in {folder} can be read: of {file}, for one, {reason}",
            "none of its images can be read",
        )
    return domain
