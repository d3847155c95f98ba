"""Flower's processes are never left behind."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from fedwca.deploy.processes import _die_with


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
@pytest.mark.parametrize(("parent", "code"), [(os.getpid, 0), (os.getppid, 1)])
def test_a_child_whose_parent_is_gone_already_does_not_begin(parent, code) -> None:  # type: ignore[no-untyped-def]
    done = subprocess.run(["true"], preexec_fn=partial(_die_with, parent()))
    assert done.returncode == code


PARENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
input()
"""
CHILD = """
import threading
from fedwca.deploy.processes import end_with_parent
end_with_parent(grace=0.1)
print("watches", flush=True)
threading.Lock().acquire() and threading.Event().wait()
"""


def test_a_process_that_hangs_ends_with_its_parent() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.stdout.readline() == "watches\n"
        rest, _ = parent.communicate("\n", timeout=60)  # until the child, too, has let go of it
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        raise
    assert rest == ""
