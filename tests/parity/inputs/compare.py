"""Asks the kernel and the twin the same question and insists on the same answer, or the same error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

from bascule.kernels.records import builder as builder_kernel
from bascule.kernels.records import keymap
from bascule.kernels.records import records as kernel
from tests.parity.inputs.generate import KEYS, fill, numbers_in, record_spec
from tests.parity.twins import twin_builder, twin_keymap, twin_records
from tests.parity.twins.twin_format import OFFSET_MAX, Header

FIELDS: Final = {
    "BatchHeader": "crc length version attributes count base_offset last_offset body_bytes leader_epoch first_timestamp "
    "max_timestamp is_sealed",
    "Record": "offset timestamp leader_epoch key value headers subject reply",
    "Scan": "end next_offset batches records first_timestamp last_timestamp last_epoch reason",
    "Selection": "start stop next_offset reason",
    "Learned": "stop next_offset full reason",
    "Sifted": "stop kept removed gap first_held reason",
}
"""What callers see of each class, whatever else a side keeps in it."""


def plain(answer: object) -> object:
    """An answer of either side as builtins; types count, so that True is not 1."""
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    class_name = "BatchHeader" if isinstance(answer, Header) else type(answer).__name__
    if class_name in FIELDS:
        return {name: plain(getattr(answer, name)) for name in FIELDS[class_name].split()}
    assert answer is None or isinstance(answer, int | str | bytes | bytearray), type(answer)
    return type(answer).__name__, answer


def outcome(call: Callable[[], object]) -> object:
    try:
        return plain(call())
    except (kernel.BatchError, twin_records.BatchError) as error:
        return "BatchError", error.reason, error.position
    except (builder_kernel.LimitError, twin_builder.LimitError) as error:
        return "LimitError", error.field, error.size, error.limit
    except ValueError:
        return "ValueError"


def agree(of_kernel: Callable[[], object], of_twin: Callable[[], object], question: object) -> object:
    kernel_says, twin_says = outcome(of_kernel), outcome(of_twin)
    assert kernel_says == twin_says, f"{question}\n  twin   {twin_says}\n  kernel {kernel_says}"
    return twin_says


# ── the record kernel ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def of(self, module: ModuleType, data: object) -> object:
        function = getattr(module, self.name)
        keywords = dict(self.keywords)
        if self.name != "scan":
            return function(data, *self.arguments, **keywords)
        marks: list[tuple[int, int, int]] = []
        epochs: list[tuple[int, int]] = []
        return [function(data, *self.arguments, **keywords, marks=marks, epochs=epochs), marks, epochs]


def agree_on(call: Call, data: bytes, given: object = None) -> object:
    """`given` is what the kernel gets to see, when that is another kind of buffer with the same bytes."""
    handed = data if given is None else given
    return agree(
        lambda: call.of(kernel, handed),
        lambda: call.of(twin_records, data),
        f"{call} of bytes.fromhex('{data.hex()}')",
    )


def calls(rng: random.Random, data: bytes) -> Iterator[Call]:
    """Every public function that reads bytes, with arguments around which their answers change."""
    positions, offsets, timestamps = numbers_in(data)

    def near(numbers: list[int]) -> int:
        return max(-(2**63), min(rng.choice(numbers) + rng.choice((0, 0, 0, -1, 1)), 2**63 - 1))

    def place() -> int:
        return rng.choice((0, rng.choice(positions), rng.randint(0, len(data))))

    def sizes() -> int:
        return rng.choice((0, 1, 60, 150, len(data), 2**31))

    position = place()
    for name in ("read_header", "check"):
        yield Call(name)
        yield Call(name, (position,))
    yield Call("offset_at", (near(timestamps), 0))
    yield Call("offset_at", (near(timestamps), place()))
    yield Call("find_offset", (near(offsets), place()))
    yield Call("find_offset", (near(offsets),))
    yield Call("find_timestamp", (near(timestamps), place()))
    yield Call("find_timestamp", (near(timestamps),))
    yield Call("select", (near(offsets), near(offsets), sizes(), place()))
    yield Call("select", (near(offsets), OFFSET_MAX, sizes()))
    yield Call("resync", (place(), near(offsets)))
    yield Call("decode")
    yield Call("decode", (near(offsets), near(offsets)))
    start = place()
    yield Call("decode", (0, OFFSET_MAX, start, rng.choice((-1, rng.randint(start, len(data))))))
    yield Call("trim", (near(offsets),))
    yield Call("with_body", (rng.randbytes(rng.randint(0, 30)), rng.choice((0, 1, 8, 9))))
    first = offsets[2] if len(offsets) > 2 else 0
    yield _scan(rng, max(first, 0), gap=False, interval=0)
    yield _scan(rng, max(near(offsets), 0), gap=True, interval=rng.choice((sizes(), OFFSET_MAX)))
    yield _scan(rng, max(near(offsets), 0), place(), max(near(timestamps), 0), rng.choice((0, 1, 2**64 - 1)))


def _scan(
    rng: random.Random,
    next_offset: int,
    start: int = 0,
    last_timestamp: int = 0,
    last_epoch: int = 0,
    **keywords: int | bool,
) -> Call:
    switches = {name: rng.random() < 0.5 for name in ("gap", "checksums", "structure")}
    return Call(
        "scan",
        (next_offset, last_timestamp, last_epoch, start),
        tuple({**switches, "position": rng.choice((0, 7, 2**31)), **keywords}.items()),
    )


def agree_on_everything(rng: random.Random, data: bytes, given: object = None) -> None:
    for call in calls(rng, data):
        agree_on(call, data, given)


# ── the key map kernel ───────────────────────────────────────────────────────────────────────────

SECRET: Final = bytes(range(100, 116))


def maps(bytes_max: int) -> tuple[keymap.KeyMap, twin_keymap.KeyMap]:
    ours = keymap.KeyMap(bytes_max, SECRET)
    return ours, twin_keymap.KeyMap(ours.capacity, SECRET)


def agree_on_compaction(rng: random.Random, data: bytes, given: object = None) -> None:
    """Learns from the bytes and sifts them, with limits around which answers change."""
    handed: Any = data if given is None else given
    positions, offsets, timestamps = numbers_in(data)
    ours, theirs = maps(rng.choice((96, 200, 1000, 100_000)))
    end_offset = rng.choice((rng.choice(offsets), OFFSET_MAX))
    start = rng.choice((0, 0, rng.choice(positions), rng.randint(0, len(data))))
    limits = (end_offset, start, rng.choice((0, 0, rng.choice(offsets))))
    question = f"learn(end_offset, start, first_offset = {limits}) of bytes.fromhex('{data.hex()}')"
    agree(lambda: ours.learn(handed, *limits), lambda: theirs.learn(data, *limits), question)
    assert ours.count == theirs.count <= ours.capacity
    for key in KEYS:
        assert ours.get(key) == theirs.get(key), question
    rules: dict[str, Any] = {
        "end_offset": rng.choice((end_offset, rng.choice(offsets), OFFSET_MAX)),
        "keep_since": rng.choice((rng.choice(timestamps), OFFSET_MAX)),
        "tombstones_before": rng.choice((rng.choice(timestamps), 0, OFFSET_MAX)),
        "gap": rng.random() < 0.5,
        "start": rng.choice((0, 0, rng.choice(positions), rng.randint(0, len(data)))),
    }
    lead = rng.choice((b"", b"before"))

    def sifted(module: Any, keys: object, source: object) -> object:
        out = bytearray(lead)
        return [module.sift(keys, source, out, **rules), out]

    question = f"{question}\nsift({rules})"
    agree(lambda: sifted(keymap, ours, handed), lambda: sifted(twin_keymap, theirs, data), question)


# ── the builder ──────────────────────────────────────────────────────────────────────────────────


def agree_on_building(rng: random.Random) -> None:
    """Random records against random limits: taken alike, refused alike, and the same bytes at the end."""
    limits: Any = {
        "key_bytes_max": rng.choice((8, 300)),
        "value_bytes_max": rng.choice((20, 300)),
        "headers_max": rng.choice((1, 3)),
        "headers_bytes_max": rng.choice((10, 100)),
        "subject_bytes_max": rng.choice((8, 130)),
        "batch_bytes_max": rng.choice((60, 100, 400, 100_000)),
        "records_max": rng.choice((1, 4, 100)),
    }
    ours, theirs = builder_kernel.BatchBuilder(**limits), twin_builder.BatchBuilder(**limits)
    for _ in range(rng.randint(1, 10)):
        specs = [record_spec(rng, subject=rng.choice((b"", b"orders")))]
        agree(partial(fill, ours, specs), partial(fill, theirs, specs), (limits, specs))
        assert (ours.count, ours.nbytes) == (theirs.count, theirs.nbytes), (limits, specs)
    if ours.count:
        stamp = (rng.randrange(2**62), rng.randrange(2**64), rng.randrange(2**62))
        assert bytes(ours.stamp(*stamp)) == bytes(theirs.stamp(*stamp)), (limits, stamp)
