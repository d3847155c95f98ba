"""(ε, δ) of [privacy] against closed forms, and how it is reported to users."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedwca._support.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.privacy.accounting import compute_epsilon, compute_guarantee
from fedwca.privacy.mechanism import Privacy
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
    assert exact(z, rounds, delta) <= compute_epsilon(z, rounds, delta) <= plain


def test_without_noise_there_is_no_guarantee_and_without_rounds_epsilon_is_0() -> None:
    assert compute_guarantee(Privacy(), 5) is None
    assert compute_guarantee(Privacy(clip=1.0), 5) is None
    promised = compute_guarantee(Privacy(1.0, 2.0, 1e-6), 0)
    assert promised is not None
    assert promised == (0.0, 1e-6, 0)


def test_the_error_without_the_accountant_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"fedwca\[privacy\]"):
        compute_epsilon(1.0, 1, 1e-5)


FEDAVG = {"method": {"name": "fedavg", "mean": "plain"}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"noise_multiplier": 1}, "privacy.clip"),
        ({"clip": -1}, "privacy.clip"),
        ({"clip": 1e300}, "privacy.clip"),
        ({"clip": True}, "privacy.clip"),
        ({"clip": 1, "noise_multiplier": float("nan")}, "privacy.noise_multiplier"),
        ({"clip": 1, "noise_multiplier": 1e-200}, "privacy.noise_multiplier"),
        ({"clip": 1, "noise_multiplier": 1e10}, "privacy.noise_multiplier"),
        ({"clip": 1, "delta": 1}, "privacy.delta"),
        ({"epsilon": 1}, "'epsilon'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)):
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


def test_a_corrupt_guarantee_is_reported(tmp_path: Path) -> None:
    config = {"settings": resolve(FEDAVG).settings()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "privacy.json").write_text('{"epsilon": 7.5, "delta": 1e-05, "rounds": 3}')
    assert read_run(tmp_path).privacy == "ε = 7.5, δ = 1e-05 after 3 rounds"
    (tmp_path / "privacy.json").write_text('{"epsilon": null}')
    with pytest.raises(UserError, match="corrupt"):
        read_run(tmp_path)
