"""A step of training stays on its device: tried with PyTorch's "meta" device in place of a GPU.

Its tensors have a shape and a type but no numbers. An operation on tensors of two devices fails as
it does with a GPU, and so does asking for a number, for which a GPU would have to be waited for.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedwca.core.losses import proximal
from fedwca.data.augment import OBJECTS, Transform
from fedwca.methods.fedscal import agreement
from fedwca.methods.optimizer import make_sgd
from fedwca.methods.training import Batch, Losses, Objective, Step, Training, _learn, shot_loss
from fedwca.models import DomainModel, build_model

TRAINING = Training()
THERE = torch.device("meta")


class Crossings(TorchDispatchMode):
    """Notes every operation that takes tensors of one device and gives those of another."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.device.type for t in _tensors([args, kwargs])}
        if len(given | {t.device.type for t in _tensors(out)}) > 1:
            self.found.append(str(func))
        return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _objectives(model: DomainModel) -> dict[str, Callable[[Step], Losses]]:
    mine = [p for n, p in model.named_parameters() if not n.startswith("classifier.")]
    anchors = [p.detach().clone() for p in mine]
    return {
        "shot": lambda step: shot_loss(step, TRAINING),
        "proximal": lambda step: {"proximal": (1.0, proximal(mine, anchors))},
        "agreement": lambda step: {
            "agreement": (1.0, agreement(step.own_logits, step.own_logits.softmax(1), 0.9))
        },
    }


@pytest.mark.parametrize("loss", ["shot", "proximal", "agreement"])
@pytest.mark.parametrize("backbone", ["lenet", "resnet18"])
def test_a_step_neither_leaves_its_device_nor_waits_for_it(backbone: str, loss: str) -> None:
    model = build_model(backbone, 10, image_size=32, bottleneck=16).to(THERE).train()
    model.freeze_classifier()
    optimizer = make_sgd(model.backbone.parameters(), model.bottleneck.parameters(), TRAINING)
    x = torch.empty(10, 3, 32, 32, device=THERE)  # two of them mixed
    wanted, target = torch.empty(2, 8, dtype=torch.int64, device=THERE)
    objective = Objective(_objectives(model)[loss])
    with Crossings() as crossings:
        batch = Batch(torch.arange(8), x, wanted, target)
        losses = _learn(model, optimizer, batch, objective)
    assert crossings.found == []
    assert all(value.device == THERE for value in losses.values())


def test_the_check_notices_what_crosses() -> None:
    with Crossings() as crossings:
        torch.zeros(3).to(THERE)
    assert len(crossings.found) == 1
    there = torch.empty(3, device=THERE)
    with pytest.raises(RuntimeError, match="device"):
        there + torch.zeros(3)
    with pytest.raises(RuntimeError, match="meta"):
        float(there.sum())


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("transform", [OBJECTS, Transform((0.5,) * 3, (0.5,) * 3)])
def test_images_go_to_the_device_as_bytes_and_once(transform: Transform, augment: bool) -> None:
    pixels = torch.zeros(4, 256, 256, 3, dtype=torch.uint8)
    transform(pixels, None, "cpu")
    moved: list[torch.dtype] = []

    class Moves(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if "_to_copy" in str(func) and out.device != args[0].device:
                moved.append(args[0].dtype)
            return out

    with Moves():
        x = transform(pixels, torch.Generator() if augment else None, THERE)
    assert x.device == THERE
    assert moved == [torch.uint8]
