"""Secure sums are exact whoever drops out, and each secret is revealed once."""

from collections.abc import Collection

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwca.engines.secure_sum.fixed_point import (
    MAX_WEIGHT,
    decode,
    encode,
    step_size,
    vector_length,
)
from fedwca.engines.secure_sum.protocol import (
    Member,
    PrivateKeys,
    PublicKeys,
    SumError,
    Vector,
    mask_vector,
    new_keys,
    reveal_shares,
    share_secrets,
    threshold,
    unmask_sum,
)

NAMES = ["a", "b", "c", "d", "e"]
KEYS = {name: new_keys() for name in NAMES}  # shared, as they take long to generate


class Sum:
    """All members of a sum, and what the server has of it."""

    def __init__(self, vectors: dict[str, Vector]) -> None:
        self.vectors = vectors
        self.peers = {name: KEYS[name].public() for name in vectors}
        self.members: dict[str, Member] = {}
        self.boxes: dict[str, dict[str, bytes]] = {}
        self.masked: dict[str, Vector] = {}

    def share(self, without: Collection[str] = ()) -> "Sum":
        for name in self.vectors.keys() - set(without):
            self.members[name], self.boxes[name] = share_secrets(name, KEYS[name], self.peers)
        return self

    def mask(self, without: Collection[str] = ()) -> "Sum":
        for name in self.members.keys() - set(without):
            boxes = {peer: box[name] for peer, box in self.boxes.items() if peer != name}
            vector = self.vectors[name]
            self.members[name], self.masked[name] = mask_vector(self.members[name], boxes, vector)
        return self

    def reveal(self, without: Collection[str] = ()) -> Vector:
        helping = self.masked.keys() - set(without)
        revealed = {name: reveal_shares(self.members[name], self.masked, 2) for name in helping}
        return unmask_sum(add_up(self.masked), self.masked, self.boxes, self.peers, revealed)


def add_up(masked: dict[str, Vector]) -> Vector:
    total: Vector = np.sum(list(masked.values()), axis=0, dtype=np.uint64)
    return total


def vectors(count: int, size: int = 7) -> dict[str, Vector]:
    rng = np.random.default_rng(count)
    return {n: rng.integers(0, 2**64, size, dtype=np.uint64) for n in NAMES[:count]}


def plain(given: dict[str, Vector], names: Collection[str]) -> Vector:
    return np.sum([given[name] for name in names], axis=0, dtype=np.uint64)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_sum_is_exact_whoever_drops_out(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    given, needed = vectors(count), threshold(count)
    lost = data.draw(st.lists(st.sampled_from(NAMES[:count]), max_size=count - needed, unique=True))
    stages = [data.draw(st.integers(0, 2)) for _ in lost]
    at = [{name for name, stage in zip(lost, stages, strict=True) if stage == s} for s in range(3)]
    sum_ = Sum(given).share(at[0]).mask(at[1])
    assert (sum_.reveal(at[2]) == plain(given, sum_.masked)).all()
    assert sum_.masked.keys() == set(NAMES[:count]) - at[0] - at[1]


def test_too_few_helpers_reveal_nothing() -> None:
    sum_ = Sum(vectors(5)).share().mask()
    with pytest.raises(SumError, match="only 2 of 5 have helped to unmask"):
        sum_.reveal({"a", "b", "c"})


def test_one_secret_keeps_a_vector_hidden_and_both_reveal_it() -> None:
    """A site counts as lost, its key is combined from shares, and then its vector arrives."""
    given = vectors(4)
    sum_ = Sum(given).share().mask()
    late = sum_.masked.pop("d")
    assert (sum_.reveal() == plain(given, "abc")).all()
    keys = {n: {peer: sum_.members[n].shares[peer].key for peer in "abc"} for n in "abc"}
    without_pairs = unmask_sum(late, "d", "abc", sum_.peers, keys)
    assert not (without_pairs == given["d"]).any()
    both = {n: {**keys[n], "d": sum_.members[n].shares["d"].seed} for n in "abc"}
    assert (unmask_sum(late, "d", "abcd", sum_.peers, both) == given["d"]).all()


def test_masks_of_two_sums_and_of_two_members_differ() -> None:
    given = {name: np.zeros(4000, dtype=np.uint64) for name in "abc"}
    seen = [*Sum(given).share().mask().masked.values(), *Sum(given).share().mask().masked.values()]
    bits = np.unpackbits(np.concatenate(seen).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(len(bits))
    assert len({vector.tobytes() for vector in seen}) == 6
    assert len(np.unique(np.concatenate(seen))) == 24_000


def test_a_member_refuses_keys_of_another_sum() -> None:
    keys: PrivateKeys = KEYS["a"]
    peers: dict[str, PublicKeys] = {n: KEYS[n].public() for n in "abc"}
    wrong = {"a": KEYS["b"].public(), "b": KEYS["c"].public()}  # with the keys of another site
    twice = {**peers, "d": peers["b"]}
    for bad in (wrong, twice, {"a": peers["a"]}, {n: peers[n] for n in "bc"}):
        with pytest.raises(SumError, match="not those of a sum with this site"):
            share_secrets("a", keys, bad)
    assert peers["b"].usable()
    assert not peers["b"]._replace(share=b"no key").usable()
    assert not peers["b"]._replace(share=peers["b"].mask).usable()  # one key for both uses
    with pytest.raises(SumError, match="a public key cannot be used"):
        share_secrets("a", keys, {**peers, "b": PublicKeys(b"no", b"key")})


def test_a_member_refuses_shares_for_others() -> None:
    sum_ = Sum(vectors(3)).share()
    member, vector = sum_.members["a"], sum_.vectors["a"]
    with pytest.raises(SumError, match="only 1 of 3 have shared"):
        mask_vector(member, {}, vector)
    with pytest.raises(SumError, match="not members of the sum"):
        mask_vector(member, {"b": b"", "z": b""}, vector)
    with pytest.raises(SumError, match="cannot be decrypted"):
        mask_vector(member, {"b": sum_.boxes["b"]["c"]}, vector)
    swapped = {"b": sum_.boxes["c"]["a"], "c": sum_.boxes["b"]["a"]}
    with pytest.raises(SumError, match="cannot be decrypted"):
        mask_vector(member, swapped, vector)


def test_a_member_reveals_one_secret_of_each_and_no_sum_of_few() -> None:
    sum_ = Sum(vectors(5)).share().mask()
    member = sum_.members["a"]
    shares = reveal_shares(member, ["a", "b", "c"], 3)
    assert shares == {
        n: member.shares[n].seed if n in "abc" else member.shares[n].key for n in NAMES
    }
    for bad in (["b", "c", "d"], ["a", "b", "z"]):
        with pytest.raises(SumError, match="not those of a sum with this site"):
            reveal_shares(member, bad, 3)
    with pytest.raises(SumError, match="a sum over 3 sites would reveal too much"):
        reveal_shares(member, ["a", "b", "c"], 4)
    with pytest.raises(SumError, match="a sum over 2 sites would reveal too much"):
        reveal_shares(member, ["a", "b", "b"], 2)


def test_wrong_shares_give_no_sum() -> None:
    sum_ = Sum(vectors(4)).share().mask(["d"])
    right = {n: reveal_shares(sum_.members[n], sum_.masked, 3) for n in "abc"}
    others = Sum(vectors(4)).share().mask(["d"])
    foreign = {n: reveal_shares(others.members[n], others.masked, 3) for n in "abc"}
    for name in "ad":  # a seed's, and a key's
        wrong = {**right, "b": {**right["b"], name: foreign["b"][name]}}
        with pytest.raises(SumError):
            unmask_sum(add_up(sum_.masked), sum_.masked, sum_.boxes, sum_.peers, wrong)
    junk = {**right, "b": {**right["b"], "a": b"123"}}
    with pytest.raises(SumError):
        unmask_sum(add_up(sum_.masked), sum_.masked, sum_.boxes, sum_.peers, junk)


@pytest.mark.parametrize("weights", [(1, 1, 1), (7, 1, 12), (2**20, 3, 2**19 + 1)])
def test_a_mean_is_rounded_by_half_a_step_at_most_and_never_overflows(
    weights: tuple[int, ...],
) -> None:
    rng = torch.Generator().manual_seed(0)
    total = sum(weights)
    models = [
        {"w": torch.randn(50, 20, generator=rng, dtype=torch.float64), "n": torch.tensor(k)}
        for k in range(3)
    ]
    for model in models:  # the largest values, all of one sign
        model["w"][0], model["w"][1] = MAX_WEIGHT, -MAX_WEIGHT
    sum_ = np.sum([encode(s, w, total) for s, w in zip(models, weights, strict=True)], axis=0)
    mean = decode(sum_, total, total, models[0])
    wanted = sum(w * s["w"] for s, w in zip(models, weights, strict=True)) / total
    rounding = MAX_WEIGHT * 2.0**-50
    assert float((mean["w"] - wanted).abs().max()) <= step_size(total) / 2 + rounding
    assert float((mean["w"][2:] - wanted[2:]).abs().max()) <= step_size(total) / 2 + 2.0**-45
    assert int(mean["n"]) == 0
    assert len(sum_) == vector_length(models[0]) == 1000


def test_weights_that_cannot_be_summed_are_refused() -> None:
    for value in (MAX_WEIGHT * 1.01, -MAX_WEIGHT * 1.01, torch.nan, torch.inf):
        with pytest.raises(SumError, match="exceeds ±65536"):
            encode({"w": torch.tensor([0.0, value])}, 1, 3)
    for weight in (0, 4, -1):
        with pytest.raises(SumError, match="cannot count"):
            encode({"w": torch.zeros(2)}, weight, 3)


def test_a_key_that_the_library_cannot_handle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that shared another secret than its key can make the library raise anything."""

    def odd(private: bytes) -> None:
        raise RuntimeError("unknown key type")

    monkeypatch.setattr("fedwca.engines.secure_sum.protocol.bytes_to_private_key", odd)
    with pytest.raises(SumError, match="a private key cannot be read"):
        KEYS["a"].public()
