import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.models import DomainModel, build_model


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def lenet() -> DomainModel:
    return build_model("lenet", 10)


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Call refusal(action, *arguments) for the message of the UserError that it raises."""

    def sentence(action: Callable[..., Any], *arguments: Any) -> str:
        with pytest.raises(UserError) as caught:
            action(*arguments)
        text = str(caught.value)
        assert "\n" not in text
        return text

    return sentence


@pytest.fixture(scope="session")
def imagenet_folder() -> Path:
    """The folder of real weights; without it, tests that need them are skipped."""
    place = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data")) / "weights"
    if place.is_dir():
        return place
    pytest.skip("no real weights: set FEDWCA_TEST_DATA to the folder that holds weights/")
