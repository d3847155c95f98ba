"""The command `fedwca`: its subcommands, and how each error ends it."""

import io
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import Annotated, NoReturn

import typer
import typer.core

from fedwca._support.errors import UserError, describe_disk_error
from fedwca._support.interrupts import StoppedError
from fedwca._support.machine import is_out_of_memory, keep_freed_memory
from fedwca.cli import models, results, run
from fedwca.cli.console import print_to_stderr, show_logs
from fedwca.cli.data import data_app
from fedwca.cli.deploy import deploy_app
from fedwca.cli.tune import tune

__all__ = ["app", "main"]

_CLOSED_OUTPUT = 128 + 13  # as of a program that SIGPIPE ends
typer.core.HAS_RICH = False  # otherwise help texts, which are plain, say "\[required]"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def fedwca(
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Federated source-free domain adaptation: FedWCA and baselines."""
    if version:
        from importlib.metadata import version as installed_version

        print(f"fedwca {installed_version('fedwca')}")
        raise typer.Exit()


# In the order of `fedwca --help`: first what users need first.
app.command()(run.run)
app.command("methods")(run.list_methods)
app.command()(run.resume)
app.command("list")(results.list_runs)
app.command()(results.show)
app.command()(results.compare)
app.command()(run.reproduce)
app.command()(tune)
app.command()(results.report)
app.command()(results.watch)
app.command()(models.export)
app.command()(models.predict)
app.command("adapt-client")(models.adapt_client)
app.command()(results.tensorboard)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error becomes one sentence and an exit code."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold what it cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(_run_command(arguments))


def _run_command(arguments: list[str] | None) -> int:
    try:
        with show_logs():
            app(arguments, standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except UserError as error:
        return _print_error(str(error))
    except StoppedError as stop:
        return _end_stopped_command(stop)
    except BrokenPipeError:  # the reader has stopped, as in `fedwca list | head`
        with suppress(OSError):  # stdout may have no file descriptor
            # Python would report the unread rest when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_OUTPUT
    except Exception as error:
        return _print_exception(error)
    return 0


def _end_stopped_command(stop: StoppedError) -> int:
    _print_error(str(stop))
    if stop.at_once:  # unloading Python and torch may take seconds on a busy machine
        with suppress(BrokenPipeError):  # the reader may have stopped, too
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code)
    return stop.code


def _print_error(sentence: str) -> int:
    """Print an error and return the exit code of a user's mistake."""
    print_to_stderr(f"error: {' '.join(sentence.split())}")
    return 2


def _print_exception(error: Exception) -> int:
    if is_out_of_memory(error):
        return _print_error(
            "out of memory: close other programs, or use smaller images, batches or networks, "
            "or fewer workers"
        )
    if isinstance(error, OSError):
        return _print_error(describe_disk_error(error))
    with tempfile.NamedTemporaryFile("w", prefix="fedwca-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    _print_error(
        f"fedwca failed unexpectedly ({type(error).__name__}: {error}); "
        f"please report it with {log.name}"
    )
    return 1
