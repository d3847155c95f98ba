"""The paper's numbers are complete, and their contradictions are reported."""

import pytest

from fedwca.data.benchmarks.digit_five import DIGIT_FIVE
from fedwca.data.benchmarks.object_benchmarks import OFFICE_HOME, PACS
from fedwca.report.measures import sizes_by_domain
from fedwca.reproduce.paper import ACCURACY, CLUSTERS, SOURCES, find_contradictions, paper_rows


def test_sources_are_the_domains_of_the_benchmarks_in_the_paper_s_order() -> None:
    assert {
        "digit-five": DIGIT_FIVE,
        "pacs": tuple(PACS.domains),
        "office-home": tuple(OFFICE_HOME.domains),
    } == SOURCES


def test_every_row_has_a_number_for_every_source() -> None:
    for tables in ACCURACY.values():
        for benchmark, rows in tables.items():
            for row in rows.values():
                assert len(row.means) == len(SOURCES[benchmark])
                assert len(row.spreads) in (0, len(row.means))


def test_all_averages_but_five_follow_from_their_rows() -> None:
    wrong = {
        (benchmark, name)
        for tables in ACCURACY.values()
        for benchmark, rows in tables.items()
        for name, row in rows.items()
        if abs(row.mean - row.average) > 0.0101
    }
    assert wrong == {
        ("digit-five", "ladd"),
        ("digit-five", "ifca"),
        ("office-home", "ladd"),
        ("pacs", "fp"),
        ("pacs", "pp"),
    }
    # (49.00 + 78.40 + 72.93 + 56.93 + 83.79) / 5 = 341.05 / 5
    assert paper_rows("main", "digit-five")["ladd"].mean == pytest.approx(68.21)
    (note,) = find_contradictions(
        "main", "digit-five", ["fedavg", "ladd", "fedwca"], SOURCES["digit-five"]
    )
    assert "67.67 for ladd" in note
    assert "68.21" in note


def test_different_values_of_one_number_are_reported() -> None:
    assert "84.94±1.15" in find_contradictions("revised", "digit-five", ["fedwca"], ["synth"])[0]
    assert "83.93" in find_contradictions("clustering", "digit-five", ["finch"], ["mnist"])[0]
    assert find_contradictions("main", "mini-digits", ["fedwca"], []) == []
    # the paper prints no average over some of the sources
    assert find_contradictions("main", "digit-five", ["ladd"], ["mnist", "svhn"]) == []


def test_sizes_as_the_paper_s_tables_of_symbols_read() -> None:
    # Digit-Five from SYNTH: ○ for 1-8, △ for 9-16 and 25-32, □ for 17-20, ◇ for 21-24
    symbols = "○" * 8 + "△" * 8 + "□" * 4 + "◇" * 4 + "△" * 8
    digits = [domain for domain in "ABCD" for _ in range(8)]
    found = sizes_by_domain([ord(symbol) for symbol in symbols], digits)
    assert found == CLUSTERS["digit-clusters"]["digit-five"]["synth", "1"] == "8 | 8a | 4+4 | 8a"
    # PACS, 12th layer: ○ for all but S′ and S″
    styles = [domain for domain in "CPS" for _ in range(3)]
    found = sizes_by_domain([0, 0, 0, 0, 0, 0, 0, 1, 1], styles)
    layers = CLUSTERS["layers"]["pacs"]
    assert sorted(found.split(" | ")[2].split("+")) == ["1a", "2"]
    assert sorted(layers["art_painting", "12"].split(" | ")[2].split("+")) == ["1a", "2"]
    assert len(layers) == 18  # 17 convolutions of a ResNet-18, and all weights


def test_sizes_begin_with_the_largest() -> None:
    assert sizes_by_domain([5, 7, 7, 1, 1, 1], list("aaabbb")) == "2+1 | 3"
