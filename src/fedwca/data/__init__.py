"""Benchmarks, domains, clients, and the images that they hold."""

from fedwca.data.benchmarks import BENCHMARKS, detect_benchmark, load_benchmark
from fedwca.data.cache import default_cache
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.data.partition import Partition
from fedwca.data.types import Benchmark, DataRequest, Domain

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ClientData",
    "DataRequest",
    "Domain",
    "LabeledImages",
    "Partition",
    "UnlabeledImages",
    "default_cache",
    "detect_benchmark",
    "load_benchmark",
]
