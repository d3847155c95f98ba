"""Secure aggregation: the server learns a sum but no summand, even if some sites drop out.

Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017,
for a server that follows the protocol. Every pair of members shares a mask: clusters are small,
and the sparser graph of Bell et al. (CCS 2020) pays off only with thousands of members.

Key agreement, encryption and Shamir's secret sharing are Flower's. Masks are AES in counter mode,
as in the paper: Flower's own generator reduces every key to 28 bits, few enough to try all of them.
"""

import base64
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
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
    "Member",
    "PrivateKeys",
    "PublicKeys",
    "Shares",
    "SumError",
    "Vector",
    "mask_vector",
    "new_keys",
    "reveal_shares",
    "share_secrets",
    "threshold",
    "unmask_sum",
]

Vector = NDArray[np.uint64]  # sums are modulo 2^64


class SumError(ValueError):
    """A step of the protocol that must not or cannot be done."""


class PublicKeys(NamedTuple):
    """A member's public keys for one sum: to agree on masks, and to encrypt shares for it."""

    mask: bytes
    share: bytes

    def usable(self) -> bool:
        """Return whether the other members can use the keys; one bad key would stop them all."""
        try:
            valid = all(bytes_to_public_key(k).curve.name == "secp384r1" for k in self)
            return valid and self.mask != self.share
        except Exception:  # the library raises a dozen kinds for foreign bytes
            return False


class PrivateKeys(NamedTuple):
    """A member's private keys for one sum, as PEM."""

    mask: bytes
    share: bytes

    def public(self) -> PublicKeys:
        """Return the public keys."""
        return PublicKeys(_public_key(self.mask), _public_key(self.share))


class Shares(NamedTuple):
    """Shares of a member's secrets: of the seed of its own mask, and of its private mask key."""

    seed: bytes
    key: bytes


@dataclass(frozen=True)
class Member:
    """One member's state during a sum; all of it is secret.

    Attributes:
        name: the member's.
        keys: its private keys.
        seed: of its own mask.
        peers: the public keys of all members, itself included.
        shares: what it has of each member's secrets; at first only of its own.
    """

    name: str
    keys: PrivateKeys
    seed: bytes
    peers: dict[str, PublicKeys]
    shares: dict[str, Shares]


def threshold(members: int) -> int:
    """Return how many must help to unmask: a majority, so that no two halves unmask two sums."""
    return members // 2 + 1


def new_keys() -> PrivateKeys:
    """Generate keys for one sum, from the system's randomness and never from a run's seed."""
    first, second = (private_key_to_bytes(generate_key_pairs()[0]) for _ in range(2))
    return PrivateKeys(first, second)


def share_secrets(
    name: str, keys: PrivateKeys, peers: Mapping[str, PublicKeys]
) -> tuple[Member, dict[str, bytes]]:
    """Start a member's part: return it and, for each other member, encrypted shares."""
    every = [key for public in peers.values() for key in public]
    if peers.get(name) != keys.public() or len(set(every)) < len(every) or len(peers) < 2:
        raise SumError("the keys are not those of a sum with this site")
    seed, order, n, t = os.urandom(32), sorted(peers), len(peers), threshold(len(peers))
    pieces = list(map(Shares, create_shares(seed, t, n), create_shares(keys.mask, t, n)))
    own = order.index(name)
    boxes = {
        peer: encrypt(
            _shared_secret(keys.share, peers[peer].share),
            share_keys_plaintext_concat(own, number, *pieces[number]),
        )
        for number, peer in enumerate(order)
        if peer != name
    }
    return Member(name, keys, seed, dict(peers), {name: pieces[own]}), boxes


def mask_vector(
    member: Member, boxes: Mapping[str, bytes], vector: Vector
) -> tuple[Member, Vector]:
    """Mask a vector, with masks that cancel among all members whose shares arrived."""
    if member.name in boxes or not boxes.keys() <= member.peers.keys():
        raise SumError("there are shares of sites that are not members of the sum")
    if len(boxes) + 1 < threshold(len(member.peers)):
        raise SumError(f"only {len(boxes) + 1} of {len(member.peers)} have shared their secrets")
    shares = {**member.shares, **{peer: _decrypt(member, peer, box) for peer, box in boxes.items()}}
    masked = vector + _key_stream(member.seed, len(vector))
    for peer in boxes:
        secret = _shared_secret(member.keys.mask, member.peers[peer].mask)
        masked = _add_pair_mask(masked, member.name, peer, secret)
    return replace(member, shares=shares), masked


def reveal_shares(member: Member, summed: Collection[str], min_summed: int) -> dict[str, bytes]:
    """Return a share of the seed of each summed member, and of the key of each other one.

    Never both of one member: with both, the server could unmask its vector. So the caller must
    call this only once for a member.
    """
    if member.name not in summed or not set(summed) <= member.shares.keys():
        raise SumError("the summed sites are not those of a sum with this site")
    if len(set(summed)) < max(min_summed, threshold(len(member.peers))):
        raise SumError(f"a sum over {len(set(summed))} sites would reveal too much of each")
    return {
        name: shares.seed if name in summed else shares.key
        for name, shares in member.shares.items()
    }


def unmask_sum(
    total: Vector,
    masked: Collection[str],
    sharing: Collection[str],
    peers: Mapping[str, PublicKeys],
    revealed: Mapping[str, Mapping[str, bytes]],
) -> Vector:
    """Remove the masks from the sum of masked vectors: the server's part.

    Args:
        total: the sum of masked vectors.
        masked: the members whose vectors are in it.
        sharing: the members that shared their secrets, for which the others masked.
        peers: public keys of all members.
        revealed: what `reveal_shares` returned at each member that helps.
    """
    if len(revealed) < threshold(len(peers)):
        raise SumError(f"only {len(revealed)} of {len(peers)} have helped to unmask")
    for name in sharing:
        secret = _combine([shares[name] for shares in revealed.values()])
        if name in masked:
            total = total - _key_stream(secret, len(total))
            continue
        if _public_key(secret) != peers[name].mask:
            raise SumError(f"the shares of the key of {name} are wrong")
        for other in masked:  # removes the mask that `other` added for it
            total = _add_pair_mask(total, name, other, _shared_secret(secret, peers[other].mask))
    return total


def _combine(shares: list[bytes]) -> bytes:
    try:
        return combine_shares(shares)
    except Exception:  # the library raises a dozen kinds for foreign bytes
        raise SumError("the shares of a secret do not match") from None


def _public_key(private: bytes) -> bytes:
    try:
        return public_key_to_bytes(bytes_to_private_key(private).public_key())
    except Exception:  # likewise, as it may be combined from foreign shares
        raise SumError("a private key cannot be read") from None


def _shared_secret(private: bytes, public: bytes) -> bytes:
    try:
        return generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    except Exception:  # likewise
        raise SumError("a public key cannot be used") from None


def _decrypt(member: Member, peer: str, box: bytes) -> Shares:
    order = sorted(member.peers)
    try:
        content = decrypt(_shared_secret(member.keys.share, member.peers[peer].share), box)
    except InvalidToken:
        raise SumError(f"the shares of {peer} cannot be decrypted") from None
    source, target, *pieces = share_keys_plaintext_separate(content)
    if (source, target) != (order.index(peer), order.index(member.name)):
        raise SumError(f"the shares of {peer} are for another site")
    return Shares(*pieces)


def _add_pair_mask(vector: Vector, name: str, peer: str, secret: bytes) -> Vector:
    """Add the mask of `name` for `peer`, the opposite of that of `peer` for `name`."""
    stream = _key_stream(base64.urlsafe_b64decode(secret), len(vector))
    return vector + stream if name < peer else vector - stream


def _key_stream(key: bytes, length: int) -> Vector:
    """Return an AES-256-CTR key stream; each key is used once, so the counter starts at 0."""
    if len(key) != 32:
        raise SumError("the seed of a mask must have 32 bytes")
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)
