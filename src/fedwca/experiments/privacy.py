"""What [privacy] promises: (ε, δ) by a known accountant, and which methods can keep it."""

from typing import Any, NamedTuple

from fedwca.engines.privacy import Privacy
from fedwca.errors import UserError
from fedwca.experiments.store import RunFolder
from fedwca.methods.base import Method
from fedwca.notes import Note

__all__ = ["Guarantee", "announce", "check_private", "epsilon", "guarantee"]

# Another data set in a client's place may turn its clipped update round: 2C, not C.
SENSITIVITY = 2.0


class Guarantee(NamedTuple):
    """What holds for each client's whole data set, after so many rounds."""

    epsilon: float
    delta: float
    rounds: int


def announce(folder: RunFolder, privacy: Privacy, promised: Guarantee | None, note: Note) -> None:
    """Keep the promise in the run folder, and tell it before the first round."""
    if privacy.on and promised is None:
        note("privacy: updates are clipped and get no noise, which guarantees nothing")
    if promised is not None:
        folder.write_json("privacy.json", promised._asdict())
        note(
            f"privacy: (ε, δ) = ({promised.epsilon:.3g}, {promised.delta:g}) for the whole data "
            f"set of each client, after {promised.rounds} rounds"
        )


def check_private(method: Method, called: str) -> None:
    """Refuse a method whose replies tell something that no noise is added to."""
    told = method.discloses()
    if not told:
        return
    ways = [way for way in told.values() if way]
    instead = f"set {' and '.join(ways)}" if len(ways) == len(told) else "take fedavg or fedwca"
    raise UserError(
        f"[privacy] adds noise to weights, but clients of {called} also tell "
        f"{' and '.join(told)}: {instead}"
    )


def guarantee(privacy: Privacy, rounds: int) -> Guarantee | None:
    """What holds after the rounds; None where no noise is added."""
    if not privacy.on or privacy.noise_multiplier == 0:
        return None
    spent = epsilon(privacy.noise_multiplier, rounds, privacy.delta)
    return Guarantee(spent, privacy.delta, rounds)


def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """ε of so many rounds of noise z·C on updates of length C, by Rényi differential privacy."""
    if rounds == 0:
        return 0.0
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant()
    accountant.compose(accounting.GaussianDpEvent(noise_multiplier / SENSITIVITY), rounds)
    return float(accountant.get_epsilon(delta))


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise UserError(
            "ε is computed by Google's dp-accounting: install it with pip install 'fedwca[privacy]'"
        ) from None
    return dp_accounting
