"""Whatever a file, a setting or a message holds: a result or a sentence, and no harm.

The same inputs each time, few of each kind; `make torture` tries many, and new ones.
"""

from pathlib import Path

import pytest

from tests.fuzz.properties import PROPERTIES, Property, check_property


@pytest.mark.parametrize("fuzzed", PROPERTIES, ids=lambda fuzzed: fuzzed.name)
def test_no_input_does_harm(fuzzed: Property, tmp_path: Path) -> None:
    assert check_property(fuzzed, tmp_path, fuzzed.quick) >= len(fuzzed.always) + fuzzed.quick // 2
