"""The fuzzer notices hangs, memory and changed files even if the code under test hides them."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fedwca._support.errors import UserError
from fedwca.engines.flower.messages import Request
from tests.fuzz.harness import Sandbox, fails_with, within_bounds
from tests.fuzz.messages import OUTSIDE, a_request, plan, sent

MANY = 2 << 30  # bytes


def reject() -> None:
    raise UserError("rejected")


def use_memory() -> None:
    assert bytearray(b"x") * MANY  # used, not only asked for


def request_unbounded_memory() -> None:
    assert bytearray(1 << 42)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_hang_is_noticed_if_the_alarm_is_caught(caught: type[BaseException]) -> None:
    def act() -> None:
        with contextlib.suppress(caught):
            time.sleep(20)
        reject()

    with pytest.raises(AssertionError, match="it hangs"), within_bounds(seconds=1):
        act()


NOTICED = pytest.mark.parametrize(
    ("harm", "message"),
    [(use_memory, "it used 2,"), (request_unbounded_memory, "unbounded memory")],
)


def harm_and_reject(harm: Callable[[], None]) -> None:
    try:
        harm()
    finally:
        reject()


@NOTICED
def test_memory_is_measured_if_the_input_is_rejected(
    harm: Callable[[], None], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        fails_with(UserError, lambda: harm_and_reject(harm))
    fails_with(UserError, reject)


@NOTICED
def test_a_command_that_rejects_its_input_is_measured_too(
    tmp_path: Path, harm: Callable[[], None], message: str
) -> None:
    found = mock.patch("fedwca.cli.results.find_runs", side_effect=lambda *_: harm_and_reject(harm))
    with found, pytest.raises(AssertionError, match=message):
        Sandbox(tmp_path).fedwca("list")


def test_changed_files_outside_the_commands_own_folders_are_noticed(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    link, canary = place.work / "link", tmp_path / "canary"
    link.symlink_to("one")
    before = place.listing()
    canary.write_text("unTouched")
    assert place.listing() != before
    canary.write_text("untouched")
    assert place.listing() == before
    link.unlink()
    link.symlink_to("two")
    assert place.listing() != before


@pytest.mark.parametrize("run", OUTSIDE)
def test_a_site_that_leaves_its_folder_is_noticed(run: str, tmp_path: Path) -> None:
    request = Request("work", run, json.dumps(plan()), 0, "float32", sent(plan()))
    a_request(Sandbox(tmp_path), request)
    careless = mock.patch("fedwca.engines.flower.site_store._RUN_NAME", re.compile(".*"))
    with careless, pytest.raises(AssertionError, match="leads out"):
        a_request(Sandbox(tmp_path), request)
