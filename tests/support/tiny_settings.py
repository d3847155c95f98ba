"""Command-line settings of a run on the tiny problem's files, seconds long."""

TINY = [
    "--set=data.benchmark=npz",
    "--set=data.source=clean",
    "--set=data.image_size=16",
    "--set=data.clients_per_domain=2",
    "--set=source.epochs=2",
    "--set=training.rounds=2",
    "--set=training.epochs=1",
    "--set=training.batch_size=16",
    "--set=run.workers=1",
]

# The same on own images, in a folder `sites`.
OWN_IMAGES = [
    "--set=data.benchmark=images",
    "--set=data.path=sites",
    "--set=data.image_size=20",  # of which 17 are seen at a time
    "--set=model.backbone=lenet",
    "--set=source.epochs=2",
    "--set=source.lr=0.02",
    "--set=training.rounds=2",
    "--set=training.epochs=1",
    "--set=training.batch_size=16",
    "--set=run.workers=1",
]
