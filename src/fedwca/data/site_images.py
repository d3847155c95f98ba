"""Load the images of one site: a folder to adapt on, and optionally a labeled one to evaluate."""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedwca._support.errors import UserError
from fedwca._support.files import remove_stale_files
from fedwca.data.augment import Transform
from fedwca.data.benchmarks.own_images import class_finder, domain_warnings, scan_domain
from fedwca.data.cache import load_domain
from fedwca.data.formats.decode import make_file_domain
from fedwca.data.formats.folders import join_names
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.data.types import DataRequest, Domain

__all__ = ["SitePaths", "load_site_images"]

logger = logging.getLogger(__name__)


class SitePaths(NamedTuple):
    """Folders of a site: images to adapt on, labeled test images (optional), the cache."""

    data: Path
    test: Path | None
    cache: Path


def load_site_images(
    name: str,
    paths: SitePaths,
    classes: tuple[str, ...],
    image_size: int,
    transform: Transform,
) -> ClientData:
    """Return a site's images. `paths.data` may have class folders, but no label is read there.

    Test images are in folders named like the classes, `class/*.jpg`.
    """
    remove_stale_files(paths.cache)
    request = DataRequest(paths.data, paths.cache, image_size)
    train = _load(name, paths.data, (), request)
    images = UnlabeledImages(train.images, np.arange(len(train)), transform)
    test = None
    if paths.test is not None:
        domain = _load(f"{name} (test)", paths.test, classes, request)
        test = domain.labeled(np.arange(len(domain)), transform)
        if test is None:
            raise UserError(
                f"{paths.test} has no folder named like a class ({join_names(classes)}); "
                "sort the test images into such folders",
                "its test images are not sorted into folders named like the classes",
            )
    return ClientData(name, "", images, None, test)


def _load(name: str, folder: Path, classes: tuple[str, ...], request: DataRequest) -> Domain:
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; give the folder of the site's images",
            "the folder of its images is missing",
        )
    found = scan_domain(name, folder)
    find_class = class_finder(classes)
    files = found.label_files(find_class)
    if not files:
        raise UserError(
            f"there are no images in {folder}; put *.jpg or *.png files there",
            "there are no images in its folder",
        )
    if classes:
        for warning in domain_warnings(found, find_class):
            logger.warning(warning)
    domain = load_domain(make_file_domain(name, files, folder), request)
    if not len(domain):
        file, reason = domain.broken[0]
        raise UserError(
            f"no image in {folder} can be read; {file}, for example: {reason}",
            "none of its images can be read",
        )
    return domain
