"""Frames of a client of HTTP/2 are counted however its bytes are cut."""

from __future__ import annotations

import random

import pytest

from bascule import limits
from bascule.broker.flight.request_meter import (
    DATA,
    END_STREAM,
    ENTRY_BYTES,
    HEADERS,
    PREFACE_BYTES,
    RST_STREAM,
    RequestMeter,
)


def frame(kind: int, stream: int, length: int = 0, flags: int = 0) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + bytes(length)


def fed(*frames: bytes, seed: int | None = None) -> RequestMeter:
    meter, data = RequestMeter(), bytes(PREFACE_BYTES) + b"".join(frames)
    rng = random.Random(seed)
    while data:
        size = len(data) if seed is None else rng.randint(1, 40)
        meter.feed(data[:size])
        data = data[size:]
    return meter


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_unfinished_requests_are_counted_and_finished_ones_are_not(seed: int | None) -> None:
    meter = fed(
        frame(4, 0, 30),
        frame(HEADERS, 1, 50),
        frame(DATA, 1, 100),
        frame(HEADERS, 3, 50),
        frame(DATA, 3, 200),
        frame(DATA, 3, 20, END_STREAM),
        frame(DATA, 5, 300),
        frame(RST_STREAM, 5, 4),
        frame(DATA, 7, 7),
        frame(HEADERS, 7, 9, END_STREAM),
        seed=seed,
    )
    assert meter.unfinished_bytes == 100 + ENTRY_BYTES
    assert not meter.is_excessive


def test_large_requests_and_very_many_are_excessive() -> None:
    piece = frame(DATA, 1, 16_384)
    assert not fed(*[piece] * 60).is_excessive
    assert fed(*[piece] * 65).is_excessive
    assert fed(*(frame(DATA, 2 * number + 1) for number in range(20_000))).is_excessive
    assert fed(frame(DATA, 1, limits.FLIGHT_UNFINISHED_BYTES_MAX + 1, END_STREAM)).is_excessive
    assert not fed(*[frame(DATA, 1, 60_000, END_STREAM)] * 100).is_excessive
