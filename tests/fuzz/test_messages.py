"""What the fuzzer of messages must notice."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest

from fedwca.engines.flower_messages import Request
from fuzzing.door import Place
from fuzzing.messages import OUTSIDE, a_request, plan, sent


@pytest.mark.parametrize("run", OUTSIDE)
def test_a_site_that_leaves_its_folder_is_noticed(run: str, tmp_path: Path) -> None:
    request = Request("work", run, json.dumps(plan()), 0, "float32", sent(plan()))
    a_request(Place(tmp_path), request)
    careless = mock.patch("fedwca.deploy.site_folder._RUN", re.compile(".*"))
    with careless, pytest.raises(AssertionError, match="leads out"):
        a_request(Place(tmp_path), request)
