"""The embedded benchmark: what it holds, that it never changes, and that its domains differ."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from fedwca.data.benchmarks import mini_digits_styles as styles
from fedwca.data.benchmarks.mini_digits import CLASSES, DOMAINS, make_mini_digits, sample_ids

Made = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]

WRITTEN = ("handwriting", "photo", "postal")
PRINT_DIGEST = """
import hashlib
from fedwca.data.benchmarks.mini_digits import make_mini_digits
made = make_mini_digits(0)
parts = [array.tobytes() for pair in made.values() for array in pair]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


@pytest.fixture(scope="session")
def made() -> Made:
    return make_mini_digits(0)


def digest(made: Made) -> str:
    parts = [array.tobytes() for pair in made.values() for array in pair]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_names_and_their_order(made: Made) -> None:
    assert DOMAINS == ("handwriting", "photo", "printed", "street", "postal")
    assert tuple(made) == DOMAINS
    assert CLASSES == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")


@pytest.mark.parametrize("domain", DOMAINS)
def test_shapes_counts_and_balance(made: Made, domain: str) -> None:
    images, labels = made[domain]
    count = 599 if domain in WRITTEN else 600
    assert images.shape == (count, 32, 32, 3)
    assert images.dtype == np.uint8
    assert labels.shape == (count,)
    assert labels.dtype == np.int64
    per_class = np.bincount(labels, minlength=10)
    assert len(per_class) == 10
    assert per_class.min() >= 57
    assert per_class.max() <= 62
    # Shuffled: a run of one class would make a client's first samples useless.
    assert (np.diff(labels) == 0).mean() < 0.2


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_image_is_blank_or_repeated(made: Made, domain: str) -> None:
    images, _ = made[domain]
    assert images.reshape(len(images), -1).std(axis=1).min() > 4
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)


def test_pen_domains_are_gray_and_the_others_colored(made: Made) -> None:
    for domain, (images, _) in made.items():
        grey = bool((images[..., 0] == images[..., 2]).all())
        assert grey == (domain in ("handwriting", "postal"))


def test_every_scan_belongs_to_exactly_one_domain() -> None:
    ids = sample_ids(0)
    assert tuple(ids) == WRITTEN
    assert all(rows.dtype == np.int64 for rows in ids.values())
    dealt = np.concatenate(list(ids.values()))
    assert sorted(dealt) == list(range(1797))


def test_labels_are_those_of_the_scans(made: Made) -> None:
    truth = load_digits().target
    for domain, rows in sample_ids(0).items():
        np.testing.assert_array_equal(made[domain][1], truth[rows])


def test_fresh_processes_give_the_same_bytes(made: Made) -> None:
    runs = []
    for threads in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", PRINT_DIGEST]
        runs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    digests = {run.communicate(timeout=120)[0].strip() for run in runs}
    assert digests == {digest(made)}


def test_another_seed_gives_another_draw(made: Made) -> None:
    other = make_mini_digits(1)
    for domain in DOMAINS:
        assert other[domain][0].shape == made[domain][0].shape
        assert not np.array_equal(other[domain][0], made[domain][0])
    assert not np.array_equal(sample_ids(1)["photo"], sample_ids(0)["photo"])


@pytest.mark.parametrize("font", styles.FONTS)
def test_each_font_draws_ten_different_digits(font: str) -> None:
    missing, _ = styles.draw_text(font, "\ue123", 0)  # a private character that none of them has
    drawn = [styles.draw_text(font, digit, 0)[0] for digit in CLASSES]
    assert all(0.05 < ink.mean() < 0.7 for ink in drawn)
    assert not any(np.array_equal(ink, missing) for ink in drawn)
    assert len({ink.tobytes() for ink in drawn}) == 10


def test_the_middle_of_the_line_is_the_labeled_digit() -> None:
    ink, middle = styles.draw_text("DejaVuSans", "171", 1)
    assert abs(middle - ink.shape[1] / 2) < 4
    _, first = styles.draw_text("DejaVuSans", "171", 0)
    _, last = styles.draw_text("DejaVuSans", "171", 2)
    assert first < middle < last


def test_the_shift_is_real_and_ordered(made: Made) -> None:
    """A plain neighbour search knows its own domain and postal, and is lost in the street."""
    flat = {domain: images.mean(axis=3).reshape(-1, 1024) for domain, (images, _) in made.items()}
    images, labels = flat["handwriting"], made["handwriting"][1]
    own = KNeighborsClassifier(1).fit(images[:480], labels[:480])
    judge = KNeighborsClassifier(1).fit(images, labels)
    hits = {domain: float(judge.score(flat[domain], made[domain][1])) for domain in DOMAINS[1:]}
    assert own.score(images[480:], labels[480:]) > 0.9
    assert hits["postal"] == max(hits.values())
    assert hits["street"] < 0.3
    assert np.mean(list(hits.values())) < 0.6
