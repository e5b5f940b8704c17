"""`Counts`: metrics of this server for a call that collects them from all servers, such as a console's.

It reads them from the same page that Prometheus gets, so that both show the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.proto import extensions_pb2 as extensions
from bascule.readers.pace import Pace

if TYPE_CHECKING:
    from bascule.broker.metrics.scrape import Scrape
    from bascule.metadata.requests import CallDeadline
    from bascule.net.gate import Gate

COUNTS_BYTES_MAX: Final = 512 * limits.KIB
"""Bytes of metrics in one server's answer, half of NATS' default `max_payload`; further ones are counted as left out."""

_SAMPLE: Final = re.compile(r"([a-zA-Z0-9_]+)(?:\{(.*)\})? (\S+)").fullmatch
_LABEL: Final = re.compile(r'([a-zA-Z0-9_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_OF_STREAM: Final = 'stream="'


class CountCalls:
    def __init__(self, gate: Gate[Scrape], server_id: str) -> None:
        self._gate = gate
        self._server_id = server_id

    async def answer(self, request: extensions.CountsRequest, _deadline: CallDeadline) -> extensions.ServerCounts:
        page = await self._gate.parts().page()
        return await counts_of(page.decode(), self._server_id, request.names)


async def counts_of(page: str, server_id: str, names: Collection[str]) -> extensions.ServerCounts:
    """The samples of the page that have one of these names, as far as they fit one answer."""
    found = extensions.ServerCounts(server=server_id)
    pace, size = Pace(), 0
    is_wanted = _filter(names)
    for line in page.splitlines():
        if line.startswith("#") or not is_wanted(line):
            continue
        size += len(line) + 16
        if size > COUNTS_BYTES_MAX:
            found.left_out += 1
        else:
            _add(found, line)
        await pace.rest()
    return found


def _filter(names: Collection[str]) -> Callable[[str], bool]:
    if not names:
        return lambda line: _OF_STREAM not in line
    exact = {name for name in names if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return lambda line: re.split(r"[{ ]", line, maxsplit=1)[0] in exact or line.startswith(prefixes)


def _add(found: extensions.ServerCounts, line: str) -> None:
    sample = _SAMPLE(line)
    if sample is not None:
        name, labels, value = sample.groups()
        shown = {key: _ESCAPED.sub(_plain, text) for key, text in _LABEL.findall(labels or "")}
        found.counts.add(name=name, labels=shown, value=float(value))


def _plain(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
