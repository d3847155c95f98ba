"""Domains, clients, and the images they hold."""

from fedwca.data.benchmarks import BENCHMARKS, Benchmark, Request, load_benchmark
from fedwca.data.cache import default_cache
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ClientData",
    "LabeledImages",
    "Request",
    "UnlabeledImages",
    "default_cache",
    "load_benchmark",
]
