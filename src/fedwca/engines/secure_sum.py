"""A sum that the server learns without learning what is summed, though some drop out on the way.

Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017,
for a server that keeps to the protocol. Every member masks for every other: clusters are small, and
the sparser graph of Bell et al. (CCS 2020) is for thousands.

Key agreement, encryption and Shamir's shares are Flower's. Masks are AES in counter mode, as in the
paper: Flower's own generator folds every key to 28 bits, which can be tried out one by one.
"""

import base64
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from numpy.typing import NDArray

__all__ = [
    "Keys",
    "Member",
    "PublicKeys",
    "Shares",
    "SumError",
    "Vector",
    "mask",
    "new_keys",
    "reveal",
    "share",
    "threshold",
    "unmask",
]

Vector = NDArray[np.uint64]  # sums are modulo 2^64


class SumError(ValueError):
    """A step that must not be taken, or cannot be."""


class PublicKeys(NamedTuple):
    """A member's, for this sum only: to agree on masks with, and to send it shares."""

    mask: bytes
    share: bytes

    def usable(self) -> bool:
        """Whether others can agree on secrets with them: one that is not would stop them all."""
        try:
            right = all(bytes_to_public_key(k).curve.name == "secp384r1" for k in self)
            return right and self.mask != self.share
        except Exception:  # of a dozen kinds, each the fault of who sent them
            return False


class Keys(NamedTuple):
    """The private ones of both, as PEM."""

    mask: bytes
    share: bytes

    def public(self) -> PublicKeys:
        """What the others may know."""
        return PublicKeys(_public(self.mask), _public(self.share))


class Shares(NamedTuple):
    """What somebody else has of a member's secrets: of its own mask's seed, and of its key."""

    seed: bytes
    key: bytes


@dataclass(frozen=True)
class Member:
    """One site's part of a sum; all of it is secret.

    Attributes:
        name: the site's.
        keys: its private keys.
        seed: of its own mask.
        peers: everybody's public keys, its own among them.
        held: shares of the secrets of all who have sent theirs; at first its own.
    """

    name: str
    keys: Keys
    seed: bytes
    peers: dict[str, PublicKeys]
    held: dict[str, Shares]


def threshold(members: int) -> int:
    """How many must help to unmask: most, so that no two halves can answer different questions."""
    return members // 2 + 1


def new_keys() -> Keys:
    """Keys for one sum. Secrets come from the system's randomness, never from a run's seed."""
    first, second = (private_key_to_bytes(generate_key_pairs()[0]) for _ in range(2))
    return Keys(first, second)


def share(
    name: str, keys: Keys, peers: Mapping[str, PublicKeys]
) -> tuple[Member, dict[str, bytes]]:
    """A member's second step: shares of its secrets, sealed for each of the others."""
    every = [key for public in peers.values() for key in public]
    if peers.get(name) != keys.public() or len(set(every)) < len(every) or len(peers) < 2:
        raise SumError("the list of keys is not that of a sum with this site")
    seed, order, n, t = os.urandom(32), sorted(peers), len(peers), threshold(len(peers))
    pieces = list(map(Shares, create_shares(seed, t, n), create_shares(keys.mask, t, n)))
    own = order.index(name)
    sealed = {
        peer: encrypt(
            _agreed(keys.share, peers[peer].share),
            share_keys_plaintext_concat(own, number, *pieces[number]),
        )
        for number, peer in enumerate(order)
        if peer != name
    }
    return Member(name, keys, seed, dict(peers), {name: pieces[own]}), sealed


def mask(member: Member, sealed: Mapping[str, bytes], vector: Vector) -> tuple[Member, Vector]:
    """Its third step: the vector under masks that cancel among all whose shares have come."""
    if member.name in sealed or not sealed.keys() <= member.peers.keys():
        raise SumError("shares have come of others than the members of the sum")
    if len(sealed) + 1 < threshold(len(member.peers)):
        raise SumError(f"only {len(sealed) + 1} of {len(member.peers)} have shared their secrets")
    held = {**member.held, **{peer: _opened(member, peer, box) for peer, box in sealed.items()}}
    masked = vector + _stream(member.seed, len(vector))
    for peer in sealed:
        masked = _with_pair(
            masked, member.name, peer, _agreed(member.keys.mask, member.peers[peer].mask)
        )
    return Member(member.name, member.keys, member.seed, member.peers, held), masked


def unmask(member: Member, survivors: Collection[str], least: int) -> dict[str, bytes]:
    """Its last step: of each that was summed a share of the seed, of each other one of the key.

    Never both of one: with both, the server could take all masks off that one's vector. So the
    caller must see to it that this is done once for a member.
    """
    if member.name not in survivors or not set(survivors) <= member.held.keys():
        raise SumError("the list of those who are summed is not that of a sum with this site")
    if len(set(survivors)) < max(least, threshold(len(member.peers))):
        raise SumError(f"a sum over {len(set(survivors))} sites would tell too much of each")
    return {
        name: shares.seed if name in survivors else shares.key
        for name, shares in member.held.items()
    }


def reveal(
    total: Vector,
    masked: Collection[str],
    sharing: Collection[str],
    peers: Mapping[str, PublicKeys],
    revealed: Mapping[str, Mapping[str, bytes]],
) -> Vector:
    """The server's part: the sum of what came masked.

    Args:
        total: the sum of the vectors that came.
        masked: whose they are.
        sharing: all who shared their secrets, and whom the others masked for.
        peers: public keys of all members.
        revealed: what each that helps to unmask gave, by whose secret it is a share of.
    """
    if len(revealed) < threshold(len(peers)):
        raise SumError(f"only {len(revealed)} of {len(peers)} have helped to unmask")
    for name in sharing:
        secret = _combined([shares[name] for shares in revealed.values()])
        if name in masked:
            total = total - _stream(secret, len(total))
            continue
        if _public(secret) != peers[name].mask:
            raise SumError(f"the shares of {name}'s key are not right")
        for other in masked:  # the mask that `other` put on for it is taken off as its opposite
            total = _with_pair(total, name, other, _agreed(secret, peers[other].mask))
    return total


def _combined(shares: list[bytes]) -> bytes:
    try:
        return combine_shares(shares)
    except Exception:  # bytes that another site sent may make the library raise anything
        raise SumError("the shares of a secret do not fit together") from None


def _public(private: bytes) -> bytes:
    try:
        return public_key_to_bytes(bytes_to_private_key(private).public_key())
    except Exception:  # it may be made of shares that other sites sent
        raise SumError("a private key cannot be read") from None


def _agreed(private: bytes, public: bytes) -> bytes:
    try:
        return generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    except Exception:  # a key that another site sent, likewise
        raise SumError("a public key cannot be used") from None


def _opened(member: Member, peer: str, box: bytes) -> Shares:
    order = sorted(member.peers)
    try:
        content = decrypt(_agreed(member.keys.share, member.peers[peer].share), box)
    except InvalidToken:
        raise SumError(f"the shares of {peer} cannot be opened") from None
    source, target, *pieces = share_keys_plaintext_separate(content)
    if (source, target) != (order.index(peer), order.index(member.name)):
        raise SumError(f"the shares of {peer} were meant for somebody else")
    return Shares(*pieces)


def _with_pair(vector: Vector, name: str, peer: str, agreed: bytes) -> Vector:
    """With the mask of `name` towards `peer`, the opposite of that of `peer` towards `name`."""
    stream = _stream(base64.urlsafe_b64decode(agreed), len(vector))
    return vector + stream if name < peer else vector - stream


def _stream(key: bytes, length: int) -> Vector:
    """Key stream of AES-256 in counter mode; each key serves once, so the counter starts at 0."""
    if len(key) != 32:
        raise SumError("a mask's seed has 32 bytes")
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)
