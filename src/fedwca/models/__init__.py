"""Models: backbone → bottleneck → classifier, and their weights on disk."""

from fedwca.models.backbone import Backbone
from fedwca.models.build import build_model
from fedwca.models.described import (
    Description,
    load_described,
    read_description,
    save_described,
)
from fedwca.models.domain_model import DomainModel
from fedwca.models.heads import WeightNormClassifier
from fedwca.models.registry import BACKBONES
from fedwca.models.weights_file import (
    load_backbone,
    load_weights,
    read_class_names,
    read_seal,
    read_weights,
    save_weights,
)

__all__ = [
    "build_model",
    "DomainModel",
    "WeightNormClassifier",
    "Backbone",
    "BACKBONES",
    "read_weights",
    "read_class_names",
    "read_seal",
    "load_weights",
    "load_backbone",
    "save_weights",
    "Description",
    "load_described",
    "read_description",
    "save_described",
]
