"""Faults of the machine under a broker that runs: a clock that jumps, and a disk that is slow, refuses or cannot be read.

    machine = Machine(tmp_path / "machine")
    BrokerProcess(…, env=machine.environ)
    machine.set(write_chance=0.2, error=errno.EIO)     # every fifth write fails, a part of it may be on the disk
    machine.set(clock_seconds=3600.0)                  # the wall clock is an hour ahead from now on
    machine.heal()

Bascule reaches the disk and the wall clock through Python's `os` and `time` alone. The fork server replaces these functions before it
imports Bascule; the broker itself is the product's. Test and broker share the state in a file that both map. A broker that is started
again has the faults of before, as on a real machine.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "BROKER_FAULTS"
"""The environment variable with the path of the shared file. A fork server that has it replaces the functions."""
_STATE: Final = struct.Struct("<6dq")
_COUNT: Final = struct.Struct("<Q")
COUNTS: Final = ("reads refused", "writes refused", "syncs refused", "operations slowed")
_BYTES: Final = _STATE.size + len(COUNTS) * _COUNT.size
_SETTINGS: Final = (
    "clock_seconds",
    "read_chance",
    "write_chance",
    "sync_chance",
    "delay_seconds",
    "sync_delay_seconds",
    "error",
)


# ── in the process of the tests ──────────────────────────────────────────────────────────────────


class Machine:
    """The machine of one broker."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(_BYTES))
        self._path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._now: dict[str, float] = {}
        self.heal()

    @property
    def environ(self) -> dict[str, str]:
        return {VARIABLE: str(self._path)}

    def set(self, **settings: float) -> None:
        """Change some settings; the others stay."""
        self._now |= settings
        numbers = [self._now[name] for name in _SETTINGS]
        _STATE.pack_into(self._map, 0, *numbers[:-1], int(numbers[-1]))

    def heal(self) -> None:
        """A right clock and a good disk."""
        self.set(**dict.fromkeys(_SETTINGS, 0.0))

    @property
    def counts(self) -> dict[str, int]:
        """How often the faults had an effect, over all lives of the broker."""
        return {
            name: _COUNT.unpack_from(self._map, _STATE.size + place * _COUNT.size)[0]
            for place, name in enumerate(COUNTS)
        }


# ── in the broker ────────────────────────────────────────────────────────────────────────────────


class _Faults:
    """The faults of this process; none before `attach`."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._rng = random.Random()

    def attach(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._rng.seed(os.urandom(8))

    def clock_seconds(self) -> float:
        found: float = 0.0 if self._map is None else _STATE.unpack_from(self._map)[0]
        return found

    def on_read(self) -> None:
        if self._map is not None:
            _, chance, _, _, delay, _, code = _STATE.unpack_from(self._map)
            self._strike(chance, delay, code, 0)

    def on_write(self) -> None:
        if self._map is not None:
            _, _, chance, _, delay, _, code = _STATE.unpack_from(self._map)
            self._strike(chance, delay, code, 1)

    def on_sync(self) -> None:
        if self._map is not None:
            _, _, _, chance, _, delay, code = _STATE.unpack_from(self._map)
            self._strike(chance, delay, code, 2)

    def part_of(self, data: Any) -> Any:
        """What a write leaves on the disk that fails: nothing, or a part."""
        return memoryview(data)[: self._rng.choice((0, 0, 1, len(data) // 2, len(data)))]

    def _strike(self, chance: float, delay: float, code: int, place: int) -> None:
        if delay:
            self._count(3)
            _sleep(self._rng.uniform(0, 2 * delay))
        if chance and self._rng.random() < chance:
            self._count(place)
            raise OSError(code or errno.EIO, os.strerror(code or errno.EIO))

    def _count(self, place: int) -> None:
        assert self._map is not None
        position = _STATE.size + place * _COUNT.size
        _COUNT.pack_into(self._map, position, _COUNT.unpack_from(self._map, position)[0] + 1)


_sleep: Final = time.sleep
_faults: Final = _Faults()
attach: Final = _faults.attach


def install() -> None:
    """Replace what Bascule calls. Has to be done before Bascule is imported: some of it keeps `time.time_ns` as a default."""
    _replace_clock()
    _replace_disk()


def _replace_clock() -> None:
    time_ns, seconds, clock = time.time_ns, time.time, _faults.clock_seconds
    time.time_ns = lambda: time_ns() + int(clock() * 1e9)
    time.time = lambda: seconds() + clock()


def _replace_disk() -> None:
    pwrite = os.pwrite

    def write(handle: int, data: Any, position: int) -> int:
        try:
            _faults.on_write()
        except OSError:
            pwrite(handle, _faults.part_of(data), position)
            raise
        return pwrite(handle, data, position)

    os.pwrite = write
    os.pread = _before(os.pread, _faults.on_read)
    os.fdatasync = _before(os.fdatasync, _faults.on_sync)
    os.fsync = _before(os.fsync, _faults.on_sync)
    os.ftruncate = _before(os.ftruncate, _faults.on_write)
    os.rename = _before(os.rename, _faults.on_write)


def _before(function: Callable[..., Any], strike: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        strike()
        return function(*arguments)

    return call
