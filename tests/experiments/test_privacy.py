"""(ε, δ) of [privacy] against closed forms, and what users are told of it."""

import json
import math
import sys
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedwca.engines.privacy import Privacy
from fedwca.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.experiments.privacy import epsilon, guarantee
from fedwca.report.runs import read_run


def exact(z: float, rounds: int, delta: float) -> float:
    """ε of the analytic Gaussian mechanism (Balle and Wang 2018).

    T rounds of sensitivity 2C and noise z·C are one of sensitivity 2C·√T.
    """
    mu = 2 * math.sqrt(rounds) / z

    def excess(eps: float) -> float:
        lost = math.exp(eps + norm.logcdf(-mu / 2 - eps / mu))
        return float(norm.cdf(mu / 2 - eps / mu) - lost - delta)

    return 0.0 if excess(0) < 0 else float(brentq(excess, 0, 700))


@pytest.mark.parametrize(("z", "rounds"), [(50, 1), (5, 1), (2.2, 3), (4, 20), (20, 100), (0.6, 3)])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_epsilon_is_between_the_exact_one_and_the_plain_formula(
    z: float, rounds: int, delta: float
) -> None:
    # Rényi divergence of order a is a·ρ with ρ = T·(2C)²/(2·(zC)²); min over a of
    # a·ρ + ln(1/δ)/(a - 1) is ρ + 2·√(ρ·ln(1/δ)).
    rho = 2 * rounds / z**2
    plain = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert exact(z, rounds, delta) <= epsilon(z, rounds, delta) <= plain


def test_without_noise_there_is_no_guarantee_and_without_rounds_nothing_is_told() -> None:
    assert guarantee(Privacy(), 5) is None
    assert guarantee(Privacy(clip=1.0), 5) is None
    promised = guarantee(Privacy(1.0, 2.0, 1e-6), 0)
    assert promised is not None
    assert promised == (0.0, 1e-6, 0)


def test_who_lacks_the_accountant_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'fedwca\[privacy\]'"):
        epsilon(1.0, 1, 1e-5)


FEDAVG = {"method": {"name": "fedavg", "mean": "plain"}}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"noise_multiplier": 1}, "set that too"),
        ({"clip": -1}, "clip must be a number from 0 to"),
        ({"clip": 1, "noise_multiplier": float("nan")}, "noise_multiplier must be 0, or a number"),
        ({"clip": 1, "delta": 1}, "delta must lie between 0 and 1"),
        ({"epsilon": 1}, "has no setting 'epsilon'"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve({**FEDAVG, "privacy": settings})


def test_a_run_without_privacy_keeps_its_name_and_one_with_it_has_another() -> None:
    plain = resolve(FEDAVG)
    assert "privacy" not in plain.settings()
    assert resolve({**FEDAVG, "privacy": {"delta": 1e-3}}).name == plain.name
    on = resolve({**FEDAVG, "privacy": {"clip": 1.0, "noise_multiplier": 2.0}})
    assert on.name != plain.name
    assert resolve(on.settings()) == on


def test_fedwca_says_which_setting_to_choose() -> None:
    with pytest.raises(UserError, match=r'set method.cluster_weights = "one_equal"'):
        resolve({"privacy": {"clip": 1.0}})


def test_a_damaged_promise_is_told_as_such(tmp_path: Path) -> None:
    config = {"settings": resolve(FEDAVG).settings()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "privacy.json").write_text('{"epsilon": 7.5, "delta": 1e-05, "rounds": 3}')
    assert read_run(tmp_path).privacy == "ε = 7.5, δ = 1e-05 after 3 rounds"
    (tmp_path / "privacy.json").write_text('{"epsilon": null}')
    with pytest.raises(UserError, match="damaged"):
        read_run(tmp_path)
