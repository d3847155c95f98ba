"""Backbones of torchvision and timm, where these libraries are installed.

A network comes untrained and without its head; its parameter names stay the library's own, so
that the library's weight files fit. Nothing is downloaded.
"""

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedwca.errors import UserError, did_you_mean
from fedwca.models.backbone import Backbone


class Library(NamedTuple):
    """How to ask one library; `module` is always its imported package."""

    names: Callable[[Any], Sequence[str]]  # module -> the networks it has
    create: Callable[[Any, str], nn.Module]  # module, name -> the network without its head


def library_backbone(library: str, name: str, image_size: int) -> Backbone:
    """The network `name` of `library` (a key of LIBRARIES) for images of `image_size` pixels."""
    module = _import(library)
    known = LIBRARIES[library].names(module)
    if name not in known:
        choice = f"choose one that {library}'s list_models() names"
        hint = did_you_mean(name, known, choice)
        raise UserError(f"there is no {library} model {name!r}: {hint}")
    net = cast(Backbone, LIBRARIES[library].create(module, name))
    # Set on the library's own module: a wrapper would put its name before every weight's name.
    net.out_features = _dry_run(net, f"{library}:{name}", image_size)
    return net


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except Exception as error:  # a build for another torch fails with RuntimeError or OSError
        raise UserError(
            f"{library} cannot be imported ({type(error).__name__}); "
            'install it with: pip install "fedwca[backbones]"'
        ) from error


def _dry_run(net: nn.Module, name: str, image_size: int) -> int:
    """The width of the features of `net`.

    In train mode, where some networks return auxiliary outputs too; on a copy and with the random
    state put back, so that the caller's network and seed are left as they were. Shapes alone are
    computed: large images would take gigabytes, and a model file may say any size.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
            images = torch.zeros(2, 3, image_size, image_size)
            features = copy.deepcopy(net).to("meta").train()(images)
    except Exception as error:  # each network has its own way to refuse a size
        raise UserError(
            f"{name} cannot read images of {image_size} pixels; "
            "set image_size to the size it was made for, often 224."
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(
            f"{name} does not give one feature vector per image; choose another backbone."
        )
    return features.shape[1]


def _torchvision_names(module: Any) -> Sequence[str]:
    # With `module`, only classifiers: no detection, segmentation or video networks.
    names: Sequence[str] = module.models.list_models(module=module.models)
    return names


def _torchvision_net(module: Any, name: str) -> nn.Module:
    net: nn.Module = module.models.get_model(name, weights=None)
    linear = [path for path, part in net.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise UserError(
            f"torchvision:{name} has no linear head to remove; choose another backbone."
        )
    # fc, classifier.1, heads.head, head …: whatever its name, the head is the last linear layer.
    parent, _, child = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())
    return net


def _timm_names(module: Any) -> Sequence[str]:
    names: Sequence[str] = module.list_models()
    return names


def _timm_net(module: Any, name: str) -> nn.Module:
    net: nn.Module = module.create_model(name, pretrained=False, num_classes=0)
    return net


LIBRARIES: dict[str, Library] = {
    "torchvision": Library(_torchvision_names, _torchvision_net),
    "timm": Library(_timm_names, _timm_net),
}
