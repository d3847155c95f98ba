"""What the fuzzer of messages must notice."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest

from fedwca.engines.flower.messages import Request
from tests.fuzz.harness import Sandbox
from tests.fuzz.messages import OUTSIDE, a_request, plan, sent


@pytest.mark.parametrize("run", OUTSIDE)
def test_a_site_that_leaves_its_folder_is_noticed(run: str, tmp_path: Path) -> None:
    request = Request("work", run, json.dumps(plan()), 0, "float32", sent(plan()))
    a_request(Sandbox(tmp_path), request)
    careless = mock.patch("fedwca.engines.flower.site_store._RUN_NAME", re.compile(".*"))
    with careless, pytest.raises(AssertionError, match="leads out"):
        a_request(Sandbox(tmp_path), request)
