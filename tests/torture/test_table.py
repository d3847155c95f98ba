"""The Markdown table of what `make torture` wrote."""

from torture.table import to_markdown


def test_a_row_for_each_attack_and_one_for_the_totals() -> None:
    tallies = [
        {"name": "killed | resumed", "attempts": 1200, "passed": 1199, "failed": 1},
        {"name": "soak", "attempts": 5, "passed": 5, "failed": 0},
        {"name": "disk", "attempts": 0, "passed": 0, "failed": 0, "skipped": "no right to mount"},
    ]
    assert to_markdown({"attacks": tallies}).splitlines() == [
        "| attack | attempts | passed | failed |",
        "|---|---:|---:|---:|",
        "| killed \\| resumed | 1,200 | 1,199 | 1 |",
        "| soak | 5 | 5 | 0 |",
        "| disk (skipped: no right to mount) | 0 | 0 | 0 |",
        "| **total** | 1,205 | 1,204 | 1 |",
    ]
