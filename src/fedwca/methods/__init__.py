"""The methods by name. A new one is a file and a line in `METHODS`."""

from fedwca.methods.base import Adapted, Client, Method, Record
from fedwca.methods.fedamp import FedAMP
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedpcl import FedPCL
from fedwca.methods.fedprox import FedProx
from fedwca.methods.fedscal import FedSCAl
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.methods.ifca import IFCA
from fedwca.methods.ladd import LADD
from fedwca.methods.ladd_plus import LADDPlus
from fedwca.methods.local import Local
from fedwca.methods.source_only import SourceOnly
from fedwca.methods.training import Training

__all__ = ["METHODS", "Adapted", "Client", "Method", "Record", "Training"]

METHODS: dict[str, type[Method]] = {
    "source_only": SourceOnly,
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedamp": FedAMP,
    "ifca": IFCA,
    "ladd": LADD,
    "ladd_plus": LADDPlus,
    "fedpcl": FedPCL,
    "fedscal": FedSCAl,
    "fedwca": FedWCA,
    "fedwca_plus": FedWCAPlus,
}
