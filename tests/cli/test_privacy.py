"""[privacy] as a person uses it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_settings import TINY


def test_a_run_tells_epsilon_before_it_starts_and_show_repeats_it(
    invoke: Callable[..., Any], npz_folder: Path
) -> None:
    noise = ["--set=privacy.clip=1", "--set=privacy.noise_multiplier=2"]
    settings = [*TINY, f"--set=data.path={npz_folder}", "--method=fedavg", *noise]
    refused = invoke("run", *settings)
    assert refused.code == 2
    assert 'clients of fedavg also tell samples: set method.mean = "plain"' in refused.err
    assert not Path("runs").exists()

    done = invoke("run", *settings, "--set=method.mean=plain")
    assert done.code == 0, done.err
    told = done.out + done.err
    # ρ = 2·T/z² = 1, so ε is below 1 + 2·√(ln 10⁵) = 7.79.
    assert "(ε, δ) = (7." in told
    assert told.index("(ε, δ)") < told.index("round 0/2")
    (run,) = Path("runs").iterdir()
    promised = json.loads((run / "privacy.json").read_text())
    assert promised.keys() == {"epsilon", "delta", "rounds"}
    assert promised["rounds"] == 2
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [set(map(str, line.get("health", {}).values())) for line in lines[1:]] == [{"{}"}] * 2
    shown = invoke("show", str(run)).out
    assert "[privacy] clip = 1.0, noise_multiplier = 2.0, delta = 1e-05" in shown
    assert f"ε = {promised['epsilon']:.3g}, δ = 1e-05 after 2 rounds" in shown
