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
