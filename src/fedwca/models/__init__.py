"""Models: backbone → bottleneck → classifier, and their weights on disk."""

from fedwca.models.backbones import BACKBONES
from fedwca.models.backbones.base import Backbone
from fedwca.models.domain_model import DomainModel, WeightNormClassifier, build_model
from fedwca.models.model_file import (
    load_backbone,
    load_model,
    load_weights,
    read_checksum,
    read_class_names,
    read_weights,
    save_model,
    save_weights,
)
from fedwca.models.spec import Architecture, ModelDescription, NetworkSpec

__all__ = [
    "BACKBONES",
    "Architecture",
    "Backbone",
    "DomainModel",
    "ModelDescription",
    "NetworkSpec",
    "WeightNormClassifier",
    "build_model",
    "load_backbone",
    "load_model",
    "load_weights",
    "read_checksum",
    "read_class_names",
    "read_weights",
    "save_model",
    "save_weights",
]
