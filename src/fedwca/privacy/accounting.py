"""The guarantee (ε, δ) of [privacy] by Rényi accounting, and which methods it covers."""

from typing import NamedTuple

from fedwca._support.errors import UserError, missing_extra_error
from fedwca.methods.base import Method
from fedwca.methods.capabilities import Discloses
from fedwca.privacy.mechanism import Privacy

__all__ = ["Guarantee", "check_disclosures", "compute_epsilon", "compute_guarantee"]

# With other images a client's clipped update may point the other way: 2C, not C.
_SENSITIVITY = 2.0


class Guarantee(NamedTuple):
    """Differential privacy of each client's whole data set after a number of rounds."""

    epsilon: float
    delta: float
    rounds: int


def check_disclosures(method: Method, name: str) -> None:
    """Raise UserError if the method's replies reveal more than weights: only those get noise."""
    disclosed = method.disclosures() if isinstance(method, Discloses) else {}
    if not disclosed:
        return
    settings = [setting for setting in disclosed.values() if setting]
    avoidable = len(settings) == len(disclosed)
    remedy = f"set {' and '.join(settings)}" if avoidable else "choose fedavg or fedwca"
    raise UserError(
        f"[privacy] adds noise to weights only, but clients of {name} also send "
        f"{' and '.join(disclosed)}: {remedy}"
    )


def compute_guarantee(privacy: Privacy, rounds: int) -> Guarantee | None:
    """Return the guarantee after the rounds, or None if no noise is added."""
    if not privacy.on or privacy.noise_multiplier == 0:
        return None
    epsilon = compute_epsilon(privacy.noise_multiplier, rounds, privacy.delta)
    return Guarantee(epsilon, privacy.delta, rounds)


def compute_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return ε after rounds of noise z·C on updates of length C, by Rényi accounting."""
    if rounds == 0:
        return 0.0
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        problem = "[privacy] needs Google's dp-accounting to compute ε"
        raise missing_extra_error(problem, "privacy") from None
    accountant = RdpAccountant()
    accountant.compose(GaussianDpEvent(noise_multiplier / _SENSITIVITY), rounds)
    return float(accountant.get_epsilon(delta))
