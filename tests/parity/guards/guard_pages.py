"""Bytes that end where the readable memory ends: a kernel that reads one byte too far dies here instead of guessing.

    python -X faulthandler -m tests.parity.guards.guard_pages <seed> <inputs>

prints the seed of every input before it is used, so that the last line names the one that killed the process.
`… trespass` reads one byte too far on purpose, to show that the guard is there.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from array import array
from typing import Final

from bascule.kernels.records import builder as builder_kernel
from bascule.kernels.records import keymap
from bascule.kernels.records import records as kernel
from bascule.kernels.wire import checksum
from tests.parity.inputs.compare import SECRET, agree_on_compaction, agree_on_everything
from tests.parity.inputs.generate import any_bytes, record_spec
from tests.parity.twins.portable_crc32c import crc32c_table
from tests.parity.twins.twin_crc32c import crc32c

PROT_NONE: Final = 0
PAGE: Final = mmap.PAGESIZE
ROOM: Final = 16 * PAGE


class Guarded:
    """A piece of memory with an unreadable page on either side."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ROOM + 2 * PAGE)
        self._view = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (self.address, self.address + PAGE + ROOM):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def at_end(self, data: bytes) -> memoryview:
        stop = PAGE + ROOM
        return self._place(data, stop - len(data), stop)

    def at_start(self, data: bytes) -> memoryview:
        return self._place(data, PAGE, PAGE + len(data))

    def _place(self, data: bytes, start: int, stop: int) -> memoryview:
        assert PAGE <= start <= stop <= PAGE + ROOM
        view = self._view[start:stop]
        view[:] = data
        return view


def read(guarded: Guarded, seed: int) -> None:
    rng = random.Random(seed)
    data = any_bytes(rng)
    for place in (guarded.at_end, guarded.at_start):
        view = place(data)
        agree_on_everything(rng, data, view)
        agree_on_compaction(rng, data, view)
        assert checksum.crc32c(view) == crc32c_table(view) == crc32c(data)


def write(guarded: Guarded, others: Guarded, seed: int) -> None:
    """The builder's inputs are bytes of strangers too."""
    rng = random.Random(seed)
    builder = builder_kernel.BatchBuilder(
        key_bytes_max=1000,
        value_bytes_max=1000,
        headers_max=10,
        headers_bytes_max=1000,
        subject_bytes_max=1000,
        batch_bytes_max=100_000,
        records_max=100,
    )
    keys = keymap.KeyMap(1000, SECRET)
    values = [rng.randbytes(rng.choice((0, 1, 7, 8, 9, 200))) for _ in range(rng.randint(1, 5))]
    for value in values:
        spec = record_spec(rng)
        view = guarded.at_end(value)
        builder.add(None if spec.key is None else others.at_end(spec.key), view, spec.headers, spec.subject)
        keys.put(view, 5)
        assert keys.get(view) == 5
        assert keymap.siphash128(view, SECRET) == keymap.siphash128(value, SECRET)
    ends: array[int] = array("q")
    for value in values:
        ends.append((ends[-1] if ends else 0) + len(value))
    guarded_ends = others.at_end(ends.tobytes()).cast("q")
    builder.add_columns(guarded.at_end(b"".join(values)), guarded_ends)
    decoded = kernel.decode(builder.stamp(0, 0, 0))
    assert [one.value for one in decoded] == values + values


def main(arguments: list[str]) -> None:
    guarded, others = Guarded(), Guarded()
    if arguments == ["trespass"]:
        ctypes.string_at(guarded.address + PAGE + ROOM, 1)
    first, count = map(int, arguments)
    for seed in range(first, first + count):
        print(seed, flush=True)
        read(guarded, seed)
        write(guarded, others, seed)


if __name__ == "__main__":
    main(sys.argv[1:])
