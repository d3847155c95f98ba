"""The Flower app: the server's runner behind a ServerApp, a site's work behind a ClientApp.

`fedwca deploy run` starts it, in processes that `fedwca deploy server` and `client` keep up.
"""

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedwca.data.site_images import SitePaths
from fedwca.deploy.job import Jobs
from fedwca.deploy.kit import expected_sites
from fedwca.deploy.processes import end_with_parent
from fedwca.deploy.roles import SERVER_FOLDER, SITE_FOLDER, local_settings
from fedwca.deploy.server import serve
from fedwca.deploy.site import IN_ITS_LOG, Here, answer
from fedwca.engines.flower_grid import FlowerGrid
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.wire import WireError
from fedwca.errors import UserError, disk_sentence
from fedwca.experiments.config import resolve
from fedwca.leftovers import sweep
from fedwca.progress_display import LineProgress

__all__ = ["client_app", "server_app"]

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job that lies in the server's folder, and leave word of what became of it."""
    end_with_parent()
    folder = Path(os.environ[SERVER_FOLDER])
    jobs = Jobs(folder)
    with jobs.at_work():
        sweep(folder)
        job = jobs.last
        if not jobs.begin(job, context.run_id):
            return
        try:
            serve(
                partial(FlowerGrid, grid),
                resolve(job["settings"]),
                Path(job["runs"]),
                Path(job["cache"]),
                _expected(folder),
                LineProgress(Console()),
            )
        except Exception as error:
            with suppress(OSError):  # whoever follows the run looks at the disk then
                jobs.end("failed", _in_words(error))
            raise
        jobs.end("done")


def _in_words(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return disk_sentence(error)
    return f"{type(error).__name__}: {error}; superlink.log tells more"


def _expected(folder: Path) -> Callable[[], dict[str, str]]:
    """Reads the deployment's sites anew; half a file, as a hand that edits leaves it, is none."""
    known = expected_sites(folder)

    def read() -> dict[str, str]:
        nonlocal known
        with suppress(UserError, OSError, ValueError):
            known = expected_sites(folder)
        return known

    return read


@client_app.query("join")
def join(message: Message, context: Context) -> Message:
    """Say who is here."""
    return _answered(message, context)


@client_app.train("work")
def work(message: Message, context: Context) -> Message:
    """Do a round."""
    return _answered(message, context)


@client_app.train("sum")
def sum_up(message: Message, context: Context) -> Message:
    """Take part in a step of a secure sum."""
    return _answered(message, context)


def _answered(message: Message, context: Context) -> Message:
    site = str(context.node_config["site"])
    try:
        request = Request.read(message.content)
        reply = answer(_here(site), request, lambda text: print(text, flush=True))
    except WireError as error:
        reply = Reply(site, problem=str(error))
    except Exception:  # Flower would send the server the traceback, with paths in it
        traceback.print_exc()
        reply = Reply(site, problem=IN_ITS_LOG)
    return Message(reply.content(), reply_to=message)


def _here(site: str) -> Here:
    """What `fedwca deploy client` was told."""
    folder = Path(os.environ[SITE_FOLDER])
    local: dict[str, Any] = local_settings(folder)
    test = Path(local["test"]) if local.get("test") else None
    paths = SitePaths(Path(local["data"]), test, Path(local["cache"]))
    return Here(site, paths, folder / "runs", local["device"], local["threads"])
