"""What is done with the sites that Flower reaches."""

from collections.abc import Mapping
from typing import NamedTuple

from fedwca.core.params import State
from fedwca.engines.wire import Wire
from fedwca.methods.base import Method

__all__ = ["Task"]


class Task(NamedTuple):
    """What is done with the sites.

    Attributes:
        run: name of the run.
        plan: settings that a site must know, as a text that the engine only passes on.
        method: whose messages and replies travel.
        features, classifier: of the source model; names, shapes and dtypes of all that comes are
            compared with the former, the latter goes to every site.
        sizes: what the letters in the method's declarations stand for.
        wire: how weights travel.
        private: sites keep back how many images they have, and how they do on them.
        least_summed: of how many models the server gets a sum, and of none a model; 0: it gets
            them all.
    """

    run: str
    plan: str
    method: Method
    features: State
    classifier: State
    sizes: Mapping[str, int]
    wire: Wire
    private: bool = False
    least_summed: int = 0
