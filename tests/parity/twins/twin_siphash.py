"""SipHash-2-4 with 64 and with 128 bits of output, after Aumasson and Bernstein."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_State = tuple[int, int, int, int]


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _rounds(state: _State, count: int) -> _State:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 = (v2 + v3) & _MASK
        v3 = _rotate(v3, 16) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = _rotate(v3, 21) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _words(message: bytes) -> list[int]:
    """The message as 64-bit words; the last one holds the rest and, on top, the length modulo 256."""
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    return [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]


def _mixed(secret: bytes, message: bytes, variant: int) -> _State:
    if len(secret) != 16:
        raise ValueError("a SipHash secret has 16 bytes")
    k0, k1 = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    state: _State = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ variant,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    for word in _words(message):
        v0, v1, v2, v3 = _rounds((state[0], state[1], state[2], state[3] ^ word), 2)
        state = (v0 ^ word, v1, v2, v3)
    return state


def siphash64(secret: bytes, message: bytes) -> int:
    v0, v1, v2, v3 = _mixed(secret, message, 0)
    v0, v1, v2, v3 = _rounds((v0, v1, v2 ^ 0xFF, v3), 4)
    return v0 ^ v1 ^ v2 ^ v3


def siphash128(secret: bytes, message: bytes) -> bytes:
    state = _mixed(secret, message, 0xEE)
    v0, v1, v2, v3 = _rounds((state[0], state[1], state[2] ^ 0xEE, state[3]), 4)
    low = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _rounds((v0, v1 ^ 0xDD, v2, v3), 4)
    high = v0 ^ v1 ^ v2 ^ v3
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")
