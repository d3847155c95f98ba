"""The Flower app: a ServerApp that runs an experiment, and a ClientApp that does a site's part.

Flower starts it in the processes that `fedwca deploy server` and `fedwca deploy client` run.
"""

import logging
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedwca._support.errors import UserError, describe_disk_error
from fedwca._support.files import remove_stale_files
from fedwca.cli.console import show_logs
from fedwca.data.site_images import SitePaths
from fedwca.deploy.daemons import SERVER_FOLDER, SITE_FOLDER, read_local_settings
from fedwca.deploy.deployment_files import read_site_keys
from fedwca.deploy.processes import exit_with_parent
from fedwca.deploy.server import log_to_file, serve
from fedwca.deploy.submission import APP_LOG, Submission
from fedwca.engines.codec import WireError
from fedwca.engines.flower.grid_adapter import FlowerGrid
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.flower.site import SEE_SITE_LOG, SiteConfig, handle_request
from fedwca.experiments.config import resolve

__all__ = ["client_app", "server_app"]

logger = logging.getLogger(__name__)

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what was submitted to the server's folder, and write the outcome there."""
    exit_with_parent()
    folder = Path(os.environ[SERVER_FOLDER])
    submission = Submission(folder)
    with submission.running_lock(), log_to_file(folder / APP_LOG):
        remove_stale_files(folder)
        submitted = submission.last
        if not submission.start(submitted, context.run_id):
            return
        try:
            serve(
                partial(FlowerGrid, grid),
                resolve(submitted["settings"]),
                Path(submitted["runs"]),
                Path(submitted["cache"]),
                _site_keys_reader(folder),
            )
        except Exception as error:
            logger.exception("the run failed")
            with suppress(OSError):  # on a full disk, `follow_run` finds the cause itself
                submission.finish("failed", _describe_error(error))
            raise
        submission.finish("done")


def _describe_error(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return describe_disk_error(error)
    return f"{type(error).__name__}: {error}; see {APP_LOG}"


def _site_keys_reader(folder: Path) -> Callable[[], dict[str, str]]:
    """Return a function that reads the keys of the sites, or the last ones if that fails."""
    keys = read_site_keys(folder)

    def read() -> dict[str, str]:
        nonlocal keys
        with suppress(UserError, OSError, ValueError):  # the files may be being edited
            keys = read_site_keys(folder)
        return keys

    return read


@client_app.query("join")
@client_app.train("work")
@client_app.train("sum")
def handle(message: Message, context: Context) -> Message:
    """Do what the server's message asks for; a failure is reported without details."""
    site = str(context.node_config["site"])
    with show_logs():
        try:
            reply = handle_request(_read_site(site), Request.from_records(message.content))
        except WireError as error:
            reply = Reply(site, problem=str(error))
        except Exception:  # Flower would send the traceback, with paths, to the server
            traceback.print_exc()
            reply = Reply(site, problem=SEE_SITE_LOG)
    return Message(reply.to_records(), reply_to=message)


def _read_site(site: str) -> SiteConfig:
    """Return the folders and the device that `fedwca deploy client` was given."""
    folder = Path(os.environ[SITE_FOLDER])
    local = read_local_settings(folder)
    test = Path(local["test"]) if local.get("test") else None
    paths = SitePaths(Path(local["data"]), test, Path(local["cache"]))
    return SiteConfig(site, paths, folder / "runs", local["device"], local["threads"])
