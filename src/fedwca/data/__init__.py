"""Domains, clients, and the images they hold."""

from fedwca.data.benchmarks import BENCHMARKS, load_benchmark, recognise
from fedwca.data.cache import default_cache
from fedwca.data.domains import Benchmark, Domain
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.data.partition import Partition
from fedwca.data.raw import Request

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ClientData",
    "Domain",
    "LabeledImages",
    "Partition",
    "Request",
    "UnlabeledImages",
    "default_cache",
    "load_benchmark",
    "recognise",
]
