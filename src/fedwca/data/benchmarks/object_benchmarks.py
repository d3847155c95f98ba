"""What the benchmarks of photos and drawings of objects contain, as published.

As downloaded: `art_painting/dog/*.jpg` in PACS, `Art/Alarm_Clock/*.jpg` in Office-Home,
`amazon/images/back_pack/*.jpg` in Office-31.
"""

from fedwca.data.formats.standard_folders import StandardBenchmark

__all__ = ["OFFICE31", "OFFICE_HOME", "PACS"]

# 9,991 images of 7 classes in 4 styles (Li et al., ICCV 2017)
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

# 15,588 images of 65 classes in 4 domains (Venkateswara et al., CVPR 2017). The paper prints 2,424,
# 4,365, 4,437 and 4,353 images, 15,579 in all. The distributed files, and the lists that papers on
# source-free adaptation use, have a few more; those are the standard here.
_OFFICE_HOME_CLASSES = """
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
    classes=tuple(_OFFICE_HOME_CLASSES.split()),
    counts={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
)

# 4,110 images of 31 classes in 3 domains (Saenko et al., ECCV 2010):
# class, and its number of images in amazon, dslr and webcam
_OFFICE31 = """
    back_pack         92  12  29
    bike              82  21  21
    bike_helmet       72  24  28
    bookcase          82  12  12
    bottle            36  16  16
    calculator        94  12  31
    desk_chair        91  13  40
    desk_lamp         97  14  18
    desktop_computer  97  15  21
    file_cabinet      81  15  19
    headphones        99  13  27
    keyboard         100  10  27
    laptop_computer  100  24  30
    letter_tray       98  16  19
    mobile_phone     100  31  30
    monitor           99  22  43
    mouse            100  12  30
    mug               94   8  27
    paper_notebook    96  10  28
    pen               95  10  32
    phone             93  13  16
    printer          100  15  20
    projector         98  23  30
    punchers          98  18  27
    ring_binder       90  10  40
    ruler             75   7  11
    scissors         100  18  25
    speaker           99  26  30
    stapler           99  21  24
    tape_dispenser    96  22  23
    trash_can         64  15  21
"""
_OFFICE31_ROWS = [row.split() for row in _OFFICE31.strip().splitlines()]
_OFFICE31_DOMAINS = ("amazon", "dslr", "webcam")
OFFICE31 = StandardBenchmark(
    name="Office-31",
    domains=dict.fromkeys(_OFFICE31_DOMAINS, ()),
    classes=tuple(row[0] for row in _OFFICE31_ROWS),
    counts={
        domain: tuple(int(row[column]) for row in _OFFICE31_ROWS)
        for column, domain in enumerate(_OFFICE31_DOMAINS, start=1)
    },
)
