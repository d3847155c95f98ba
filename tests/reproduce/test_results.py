"""Tables of results, from made-up runs with numbers that are easy to check."""

import csv
import io
from pathlib import Path

import pytest

from fedwca.report.runs import RunView
from fedwca.report.tables import Table, latex_document, markdown_document, to_csv, to_markdown
from fedwca.reproduce.document import make_document
from fedwca.reproduce.plan import TableRequest, plan_cells
from fedwca.reproduce.results import (
    TableResults,
    accuracy_table,
    cluster_size_table,
    compare_with_best,
    long_table,
)
from tests.support.made_up_runs import HOSTILE as NAMES

Accuracies = dict[tuple[str, str, int], float]


def run(accuracy: float, clusters: dict[str, int] | None = None) -> RunView:
    line = {
        "round": 1,
        "accuracy": {"mean": accuracy, "domains": {}},
        "clients": {name: {"domain": name[0]} for name in clusters or {}},
        "server": {f"cluster_of/{name}": c for name, c in (clusters or {}).items()},
    }
    return RunView(Path("run"), {}, (line,), True)


def make_results(values: Accuracies, seeds: int, sources: tuple[str, ...]) -> TableResults:
    return TableResults(
        table="main",
        benchmark="pacs",
        rows=("local", "fedavg", "fedwca"),
        ours=("fedwca",),
        sources=sources,
        seeds=seeds,
        runs={key: run(value) for key, value in values.items()},
    )


TWO = ("photo", "sketch")
VALUES: Accuracies = {
    ("fedavg", "photo", 0): 0.50,
    ("fedavg", "photo", 1): 0.60,
    ("fedavg", "sketch", 0): 0.30,
    ("fedavg", "sketch", 1): 0.30,
    ("fedwca", "photo", 0): 0.52,
    ("fedwca", "photo", 1): 0.62,
    ("fedwca", "sketch", 0): 0.40,
}


def test_accuracies_stand_beside_the_papers_and_missing_runs_are_dashes() -> None:
    table = accuracy_table(make_results(VALUES, 2, TWO))
    assert table.header == ["method", "photo", "paper", "sketch", "paper", "average", "paper"]
    local, fedavg, fedwca = table.rows
    # the paper's average over the two sources that are shown: (63.85 + 75.56) / 2 = 69.705
    assert local == ["local", "–", "63.9±1.4", "–", "75.6±6.0", "–", "69.7"]
    # 50 and 60: 55 ± 10/√2; averages of seeds 40 and 45: 42.5 ± 5/√2
    assert fedavg[1::2] == ["55.0±7.1", "30.0±0.0", "42.5±3.5"]
    # one of two seeds from sketch, so one average: (52 + 40) / 2
    assert fedwca[1::2] == ["57.0±7.1", "40.0…", "46.0…"]


def test_there_is_no_paper_column_without_numbers_in_the_paper() -> None:
    own = TableResults("main", "mini-digits", ("fedavg",), (), ("photo",), 1, {})
    assert accuracy_table(own).header == ["method", "photo", "average"]


def test_the_full_method_is_tested_against_the_best_of_the_others() -> None:
    values = {**VALUES, ("fedwca", "sketch", 1): 0.42}
    values |= {("local", s, seed): 0.1 for s in TWO for seed in (0, 1)}
    (table,), notes = compare_with_best(make_results(values, 2, TWO))
    assert table.title.startswith("fedwca against fedavg")
    photo, sketch, average = table.rows
    assert photo == ["photo", "+2.0", "the same in all seeds: no test", "–", "2"]
    # 10 and 12: mean 11, error 1; t = 11 with one degree of freedom: p = 1 - 2/π·atan(11) = 0.058
    assert sketch[1] == "+11.0"
    assert sketch[3] == "0.058"
    # the quantile of the Cauchy distribution is tan(0.475π) = 12.706
    assert sketch[2] == "−1.7 to +23.7"
    assert average[1] == "+6.5"
    assert "2 seeds" in notes[0]
    assert "little power" in notes[0]


def test_one_seed_gets_no_test() -> None:
    (table,), notes = compare_with_best(
        make_results({k: v for k, v in VALUES.items() if k[2] == 0}, 1, TWO)
    )
    assert table.rows[0] == ["photo", "+2.0", "one seed: no test", "–", "1"]
    assert notes == []


def test_caveats_count_the_seeds_of_each_source() -> None:
    (table,), notes = compare_with_best(make_results(VALUES, 2, TWO))
    assert [row[-1] for row in table.rows] == ["2", "1", "1"]
    assert "2 seeds" in notes[0]


def test_two_methods_of_ours_are_each_tested_and_compared_with_each_other() -> None:
    values = {("fedavg", "photo", 0): 0.3, ("fedwca", "photo", 0): 0.4}
    values |= {("fedwca_plus", "photo", 0): 0.45}
    runs = make_results(values, 1, ("photo",)).runs
    rows = ("fedavg", "fedwca", "fedwca_plus")
    both = TableResults("all", "pacs", rows, rows[1:], ("photo",), 1, runs)
    tables, _ = compare_with_best(both)
    assert [table.title.partition(",")[0].partition(":")[0] for table in tables] == [
        "fedwca against fedavg",
        "fedwca_plus against fedavg",
        "fedwca_plus against fedwca",
    ]
    assert [table.rows[0][1] for table in tables] == ["+10.0", "+15.0", "+5.0"]


def test_a_difference_that_rounds_to_zero_has_no_minus() -> None:
    values = {("fedavg", "photo", 0): 0.4004, ("fedwca", "photo", 0): 0.4}
    (table,), _ = compare_with_best(make_results(values, 1, ("photo",)))
    assert table.rows[0][1] == "+0.0"


def test_there_is_no_comparison_without_another_method() -> None:
    alone = {key: value for key, value in VALUES.items() if key[0] == "fedwca"}
    assert compare_with_best(make_results(alone, 2, TWO)) == ([], [])


def test_the_long_table_is_not_rounded() -> None:
    table = long_table(make_results(VALUES, 2, TWO))
    line = dict(zip(table.header, table.rows[3], strict=True))
    assert line["row"] == "fedavg"
    assert line["source"] == "photo"
    assert (line["mean"], line["std"], line["seeds"]) == ("55.0000", "7.0711", "2")
    assert line["values"] == "50.0000 60.0000"
    assert (line["paper_mean"], line["paper_std"]) == ("60.94", "0.96")
    assert to_csv(table).splitlines()[1] == "local,photo,,,0,,63.85,1.38"


def test_clusters_stand_beside_the_papers() -> None:
    clients = {f"{domain}{k}": 0 if domain in "CP" else 1 for domain in "CPS" for k in range(3)}
    found = TableResults(
        table="layers",
        benchmark="pacs",
        rows=("3", "4"),
        ours=(),
        sources=("art_painting",),
        seeds=1,
        runs={("4", "art_painting", 0): run(0.5, clients)},
    )
    table = cluster_size_table(found)
    assert table.rows[0] == ["art_painting", "3", "0", "–", "–", "–", "–", "3a | 3a | 3a"]
    # 3 of the first 6 and all of the other 3 are with their like: 6 of 9
    assert table.rows[1][3:6] == ["3a | 3a | 3", "2", "0.67"]
    assert table.rows[1][-1] == "3a | 3a | 3"


def test_clusters_of_clients_that_were_not_scored_have_no_purity() -> None:
    found = run(0.5, {"a0": 0})
    found.last["clients"].clear()
    whole = TableResults("main", "x", ("fedwca",), (), ("a",), 1, {("fedwca", "a", 0): found})
    assert cluster_size_table(whole).rows == [["a", "fedwca", "0", "–", "–", "–", "–"]]


HOSTILE = Table("50 % of {a_b}", ["m", "a&b"], [["x_y\\z", "1.0±0.5"], ["<|>", "–"]])


def test_latex_escapes_what_it_must() -> None:
    text = latex_document("100 % & #1", "t", [HOSTILE, HOSTILE], ["a_b", "c~d"])
    assert r"\caption{100 \% \& \#1}" in text
    assert r"m & a\&b \\ \hline" in text
    assert r"x\_y\textbackslash{}z & 1.0$\pm$0.5 \\" in text
    assert r"$<$$|$$>$ & -- \\" in text
    assert r"a\_b; c\textasciitilde{}d." in text
    assert text.count(r"\begin{tabular}{lr}") == text.count(r"\end{tabular}") == 2
    assert text.isascii()


@pytest.mark.parametrize("notes", [[], ["so it is"]])
def test_markdown_has_caption_tables_and_notes(notes: list[str]) -> None:
    text = markdown_document("Caption.", [HOSTILE, HOSTILE], notes)
    assert text.startswith("Caption.\n\n| m | a&amp;b |")
    assert "50 % of {a_b}:" in text
    assert ("- so it is" in text) == bool(notes)


def test_special_characters_are_escaped_in_documents() -> None:
    table = Table("t", ["method", "mean"], [[name, "-0.4"] for name in [*NAMES, "[3mm]"]])
    markdown = to_markdown(table)
    assert len(markdown.splitlines()) == 2 + len(table.rows)
    assert "<" not in markdown
    assert all(line.replace("\\|", "").count("|") == 3 for line in markdown.splitlines())
    rows = list(csv.reader(io.StringIO(to_csv(table))))
    assert [len(row) for row in rows] == [2] * (1 + len(table.rows))
    latex = latex_document("caption", "label", [table], [])
    body = latex[latex.index("\\hline") : latex.index("\\end{tabular}")]
    assert body.count("\n") == 3 + len(table.rows)
    assert "{[}3mm{]} &" in body
    assert "\u202e" not in markdown + latex + to_csv(table)
    assert r"\_a\_" in latex


def test_a_caption_describes_scale_seeds_and_changes(tmp_path: Path) -> None:
    overrides = (("training.lr", 0.5), ("run.workers", 1))
    request = TableRequest("revised", "small", "pacs", Path("/d"), seeds=1, overrides=overrides)
    caption = make_document(request, plan_cells(request), tmp_path).caption
    for words in (
        "Small scale: 3 clients per domain, training on at most 96 images each",
        "4 rounds of 5 epochs, images of 74 pixels, resnet18 from random weights, 1 seed",
        "training.lr = 0.5",
    ):
        assert words in caption
    assert "workers" not in caption
