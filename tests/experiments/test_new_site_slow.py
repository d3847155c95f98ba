"""What the example measures: a site that was never in the run gains from it."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_a_new_site_does_better_than_the_source_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import new_site

    rows = new_site.trial(tmp_path, seed=0, rounds=10, method="fedwca")
    assert list(rows) == ["photo", "printed", "street", "postal"]
    source, *_, delivered = (sum(column) / 4 for column in zip(*rows.values(), strict=True))
    assert delivered > source
    sys.modules.pop("new_site")
