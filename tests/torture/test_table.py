"""The table of docs/reliability.md is what `make torture` has written."""

from table import markdown


def test_a_line_for_each_attack_and_one_for_all() -> None:
    tally = {"name": "killed | resumed", "tried": 1200, "held": 1199, "lost": 1, "seconds": 3.0}
    other = {"name": "soak", "tried": 5, "held": 5, "lost": 0, "seconds": 9.0}
    unmade = {"name": "disk", "tried": 0, "held": 0, "lost": 0, "not_tried": "no right to mount"}
    assert markdown({"attacks": [tally, other, unmade]}).splitlines() == [
        "| attack | times tried | held | lost |",
        "|---|---:|---:|---:|",
        "| killed \\| resumed | 1,200 | 1,199 | 1 |",
        "| soak | 5 | 5 | 0 |",
        "| disk (not tried: no right to mount) | 0 | 0 | 0 |",
        "| **together** | 1,205 | 1,204 | 1 |",
    ]
