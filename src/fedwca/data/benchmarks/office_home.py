"""Office-Home: 15,588 images of 65 classes in 4 domains (Venkateswara et al., CVPR 2017).

As downloaded: `Art/Alarm_Clock/*.jpg`. The paper prints 2,424, 4,365, 4,437 and 4,353 images,
15,579 in all. The distributed files, and the lists that papers on source-free adaptation use, have
a few more; those are the standard here.
"""

from fedwca.data.formats.standard_folders import StandardBenchmark

__all__ = ["OFFICE_HOME"]

_CLASSES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
    Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet
    Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop
    Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer
    Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker
    Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam
"""

OFFICE_HOME = StandardBenchmark(
    name="Office-Home",
    domains={"art": (), "clipart": (), "product": (), "real_world": ("real", "rw")},
    classes=tuple(_CLASSES.split()),
    counts={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
)
