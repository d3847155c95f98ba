"""[privacy] as users see it."""

import json
from pathlib import Path

from tests.cli.conftest import Invoke
from tests.support.tiny_settings import TINY


def test_a_run_prints_epsilon_before_it_starts_and_show_repeats_it(
    invoke: Invoke, npz_folder: Path
) -> None:
    noise = ["--set=privacy.clip=1", "--set=privacy.noise_multiplier=2"]
    settings = [*TINY, f"--set=data.path={npz_folder}", "--method=fedavg", *noise]
    rejected = invoke("run", *settings)
    assert rejected.code == 2
    assert "method.mean" in rejected.err
    assert not Path("runs").exists()

    done = invoke("run", *settings, "--set=method.mean=plain")
    assert done.code == 0, done.err
    output = done.out + done.err
    # ρ = 2·T/z² = 1, so ε is below 1 + 2·√(ln 10⁵) = 7.79.
    assert "(ε, δ) = (7." in output
    assert output.index("(ε, δ)") < output.index("round 0/2")
    (run,) = Path("runs").iterdir()
    guarantee = json.loads((run / "privacy.json").read_text())
    assert guarantee.keys() == {"epsilon", "delta", "rounds"}
    assert guarantee["rounds"] == 2
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [set(map(str, line.get("health", {}).values())) for line in lines[1:]] == [{"{}"}] * 2
    shown = invoke("show", str(run)).out
    assert "[privacy] clip = 1.0, noise_multiplier = 2.0, delta = 1e-05" in shown
    assert f"ε = {guarantee['epsilon']:.3g}, δ = 1e-05 after 2 rounds" in shown
