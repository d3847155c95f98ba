"""Clients on other machines, reached through Flower: the server half and the site half."""

from fedwca.engines.flower.engine import FlowerEngine, Rules

__all__ = ["FlowerEngine", "Rules"]
