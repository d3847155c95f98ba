"""All clients on one machine."""

from fedwca.engines.simulator.simulator import Simulator

__all__ = ["Simulator"]
