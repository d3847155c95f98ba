"""PACS: 9,991 images of 7 classes in 4 styles (Li et al., ICCV 2017)."""

from pathlib import Path

from fedwca.data.raw import Found, Request
from fedwca.data.standard_folders import Standard, find_standard, looks_like

__all__ = ["PACS", "looks_like_pacs", "pacs"]

PACS = Standard(
    name="PACS",
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    counts={
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
)


def pacs(request: Request) -> Found:
    """PACS as downloaded, `art_painting/dog/*.jpg`."""
    return find_standard(PACS, request)


def looks_like_pacs(folder: Path) -> bool:
    """Whether the folder holds PACS, or a good part of it."""
    return looks_like(PACS, folder)
