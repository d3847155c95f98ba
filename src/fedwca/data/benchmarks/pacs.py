"""PACS: 9,991 images of 7 classes in 4 styles (Li et al., ICCV 2017).

As downloaded: `art_painting/dog/*.jpg`.
"""

from fedwca.data.formats.standard_folders import StandardBenchmark

__all__ = ["PACS"]

PACS = StandardBenchmark(
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
