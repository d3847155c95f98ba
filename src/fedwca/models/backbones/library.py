"""Backbones of torchvision and timm, if these libraries are installed.

A network is untrained and without its head. Its parameter names stay the library's own, so that
the library's weights files fit. Nothing is downloaded.
"""

import copy
import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedwca._support.errors import UserError, did_you_mean, missing_extra_error
from fedwca.models.backbones.base import Backbone

LIBRARIES = ("torchvision", "timm")


def library_backbone(library: str, name: str, image_size: int) -> Backbone:
    """Build the network `name` of `library`, one of LIBRARIES."""
    module = _import(library)
    if library == "timm":
        known = module.list_models()
    else:  # with `module`, classifiers only: no detection, segmentation or video networks
        known = module.models.list_models(module=module.models)
    if name not in known:
        choice = f"choose one of {library}'s list_models()"
        hint = did_you_mean(name, known, choice)
        raise UserError(f"there is no {library} model {name!r}; {hint}")
    if library == "timm":
        net = module.create_model(name, pretrained=False, num_classes=0)
    else:
        net = _build_torchvision(module, name)
    # Set on the library's own module, since a wrapper would prefix every weight's name.
    net.out_features = _feature_width(net, f"{library}:{name}", image_size)
    return cast(Backbone, net)


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except Exception as error:  # a build for another torch fails with RuntimeError or OSError
        problem = f"{library} cannot be imported ({type(error).__name__})"
        raise missing_extra_error(problem, "backbones") from error


def _feature_width(net: nn.Module, name: str, image_size: int) -> int:
    """Return the width of the features of `net`, and leave the network and the seed unchanged.

    Only shapes are computed: large images would take gigabytes, and a model file may name any
    size. In training mode, since some networks return auxiliary outputs there.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
            images = torch.zeros(2, 3, image_size, image_size)
            features = copy.deepcopy(net).to("meta").train()(images)
    except Exception as error:  # networks raise different types for such sizes
        raise UserError(
            f"{name} cannot process images of {image_size} pixels; "
            "set image_size to the size it was designed for, often 224"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(
            f"{name} does not return one feature vector per image; choose another backbone"
        )
    return features.shape[1]


def _build_torchvision(module: Any, name: str) -> Any:
    net: nn.Module = module.models.get_model(name, weights=None)
    linear = [path for path, part in net.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise UserError(f"torchvision:{name} has no linear head to remove; choose another backbone")
    # Whatever its name (fc, classifier.1, heads.head …), the head is the last linear layer.
    parent, _, child = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())
    return net
