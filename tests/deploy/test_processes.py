"""Flower's processes are never left behind."""

import os
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
