"""Office-31: 4,110 images of 31 classes in 3 domains (Saenko et al., ECCV 2010).

As downloaded: `amazon/images/back_pack/*.jpg`.
"""

from fedwca.data.formats.standard_folders import StandardBenchmark

__all__ = ["OFFICE31"]

# class, and its number of images in amazon, dslr and webcam
_TABLE = """
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
_ROWS = [row.split() for row in _TABLE.strip().splitlines()]
_DOMAINS = ("amazon", "dslr", "webcam")

OFFICE31 = StandardBenchmark(
    name="Office-31",
    domains=dict.fromkeys(_DOMAINS, ()),
    classes=tuple(row[0] for row in _ROWS),
    counts={
        domain: tuple(int(row[column]) for row in _ROWS)
        for column, domain in enumerate(_DOMAINS, start=1)
    },
)
