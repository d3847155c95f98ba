"""Office-Home: 15,588 images of 65 classes in 4 domains (Venkateswara et al., CVPR 2017).

The paper prints 2,424, 4,365, 4,437 and 4,353 images, 15,579 in all. The files that are passed
around, and the lists that the literature on source-free adaptation runs on, have a few more;
those are taken as the standard here.
"""

from pathlib import Path

from fedwca.data.raw import Found, Request
from fedwca.data.standard_folders import Standard, find_standard, looks_like

__all__ = ["OFFICE_HOME", "looks_like_office_home", "office_home"]

_CLASSES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
    Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet
    Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop
    Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer
    Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker
    Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam
"""

OFFICE_HOME = Standard(
    name="Office-Home",
    domains={"art": (), "clipart": (), "product": (), "real_world": ("real", "rw")},
    classes=tuple(_CLASSES.split()),
    counts={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
)


def office_home(request: Request) -> Found:
    """Office-Home as downloaded, `Art/Alarm_Clock/*.jpg`."""
    return find_standard(OFFICE_HOME, request)


def looks_like_office_home(folder: Path) -> bool:
    """Whether the folder holds Office-Home, or a good part of it."""
    return looks_like(OFFICE_HOME, folder)
