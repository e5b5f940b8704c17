"""The test cases of a pipeline: messages that come in, and rows that have to come out. A file of YAML or of JSON lines.

    - name: an order is enriched
      input:
        - {key: x, value: {id: 1, amount: 200}, timestamp: 2026-01-01T00:00:00Z}
        - next batch
        - {value: no JSON}
      streams: {payments: [{value: {order: 1}}]}
      tables: {customers: [{id: x, name: Ann}]}
      expect:
        rows: [{id: 1, name: Ann}]
        sinks: {stream big: [{id: 1}]}
        dead_letters: [{rule: decode, offset: 1}]
        late: 0

Of the rows that come out, the columns are compared that the expected rows name. The order of rows does not count.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from bascule.config.values.given import closest
from bascule.errors import InvalidConfig
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink

NEXT_BATCH: Final = "next batch"
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the first message; the next ones are a second later each, unless they say otherwise."""

_CASE: Final = ("name", "input", "streams", "tables", "expect")
_MESSAGE: Final = ("key", "value", "base64", "headers", "timestamp", "partition", "subject")
_EXPECT: Final = ("rows", "sinks", "dead_letters", "late")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One test: batches of messages by input, and what has to come out. None is not compared."""

    name: str
    batches: tuple[tuple[tuple[Row, ...], ...], ...]
    """By batch and by input."""
    tables: Mapping[str, list[Row]] = field(default_factory=dict)
    rows: list[Row] | None = None
    sinks: Mapping[str, list[Row]] = field(default_factory=dict)
    dead_letters: list[Row] | None = None
    late: int | None = None


def cases_beside(file: Path) -> Path:
    """`orders.test.yaml` or `orders.test.jsonl` beside `orders.yaml`. Raises InvalidConfig if there is none."""
    candidates = [file.with_name(f"{file.stem}.test{ending}") for ending in (".yaml", ".yml", ".jsonl")]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise InvalidConfig(
            f"there are no tests beside {file}", hint=f"write them to {candidates[0]}, or name a file with `--cases`"
        )
    return found


def load_cases(path: Path, spec: PipelineSpec) -> list[Case]:
    """The cases of a file. Raises InvalidConfig, which names the case and the key that is wrong."""
    documents = _documents(path)
    if not isinstance(documents, list) or not documents:
        raise InvalidConfig(f"{path} has no list of cases", hint="each has `name`, `input` and `expect`")
    cases = [_case(document, f"case {number} of {path}", spec) for number, document in enumerate(documents, start=1)]
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"two cases of {path} are called `{name}`", hint="name each once")
    return cases


def _documents(path: Path) -> Any:
    import yaml

    try:
        text = path.read_text("utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return yaml.safe_load(text)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidConfig(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _case(document: Any, place: str, spec: PipelineSpec) -> Case:
    _known(document, _CASE, place)
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"`name` of {place} is missing", hint="say in it what has to hold")
    place = f"case `{name}`"
    expect = document.get("expect")
    _known(expect, _EXPECT, f"`expect` of {place}")
    others = document.get("streams") or {}
    join = spec.stream_join
    _known(others, () if join is None else (join.stream or "",), f"`streams` of {place}")
    inputs = [(document.get("input"), _name_of(spec, 0), f"`input` of {place}")]
    if join is not None:
        inputs.append((others.get(join.stream), join.stream or "", f"`streams.{join.stream}` of {place}"))
    tables = document.get("tables") or {}
    _known(tables, [table.name for table in spec.tables], f"`tables` of {place}")
    sinks = expect.get("sinks") or {}
    _known(
        sinks, [target_of(one) for one in spec.sinks if not isinstance(one, ArchiveSink)], f"`expect.sinks` of {place}"
    )
    late = expect.get("late")
    if late is not None and (not isinstance(late, int) or isinstance(late, bool)):
        raise InvalidConfig(f"`expect.late` of {place} is `{late}`", hint="it must be a number of rows")
    return Case(
        name,
        _batches([_messages(given, stream, where) for given, stream, where in inputs]),
        {table: _rows(rows, f"`tables.{table}` of {place}") for table, rows in tables.items()},
        None if expect.get("rows") is None else _rows(expect["rows"], f"`expect.rows` of {place}"),
        {sink: _rows(rows, f"`expect.sinks.{sink}` of {place}") for sink, rows in sinks.items()},
        None
        if expect.get("dead_letters") is None
        else _rows(expect["dead_letters"], f"`expect.dead_letters` of {place}"),
        late,
    )


def target_of(sink: Any) -> str:
    """What a sink is called in a test: its paths are as the file has them, without the folder."""
    kind, _, rest = str(sink.target).partition(" ")
    return f"{kind} {Path(rest).name}".strip() if kind in ("table", "latest") else str(sink.target)


def _name_of(spec: PipelineSpec, number: int) -> str:
    names = spec.inputs[number].names
    return names[0] if names else "messages"


def _known(document: Any, names: Collection[str], place: str) -> None:
    if not isinstance(document, dict):
        raise InvalidConfig(
            f"{place} is `{document}`", hint="it must be keys: " + ", ".join(f"`{name}`" for name in names)
        )
    for key in document:
        if key not in names:
            close = closest(str(key), names)
            listed = ", ".join(f"`{name}`" for name in names) or "none"
            raise InvalidConfig(
                f"{place} has an unknown key `{key}`",
                hint=f"did you mean `{close}`?" if close else f"there are {listed}",
            )


def _rows(found: Any, place: str) -> list[Row]:
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise InvalidConfig(f"{place} is no list of rows", hint="write `[{id: 1, name: Ann}]`, or `[]` for none")
    return [{str(name): _plain(value) for name, value in row.items()} for row in found]


def _plain(value: Any) -> Any:
    """As JSON has it. YAML makes dates of texts that look like dates."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _messages(given: Any, stream: str, place: str) -> list[list[Row]]:
    """The messages of an input by batch, as rows of a stream."""
    if given is None:
        return [[]]
    if not isinstance(given, list):
        raise InvalidConfig(f"{place} is `{given}`", hint="it must be a list of messages")
    batches: list[list[Row]] = [[]]
    offsets: dict[int, int] = {}
    for number, message in enumerate(given, start=1):
        if message == NEXT_BATCH:
            batches.append([])
            continue
        _known(message, _MESSAGE, f"message {number} in {place}")
        partition = message.get("partition", 0)
        if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
            raise InvalidConfig(f"`partition` of message {number} in {place} is `{partition}`", hint="it is a number")
        offset = offsets.get(partition, 0)
        offsets[partition] = offset + 1
        batches[-1].append(_message(message, stream, partition, offset, number, f"message {number} in {place}"))
    return batches


def _message(given: Row, stream: str, partition: int, offset: int, number: int, place: str) -> Row:
    headers = given.get("headers") or {}
    if not isinstance(headers, dict):
        raise InvalidConfig(f"`headers` of {place} is `{headers}`", hint="it must be names with a text each")
    return {
        "key": _bytes(given.get("key")),
        "value": _decoded(given["base64"], place) if "base64" in given else _bytes(_plain(given.get("value"))),
        "stream": stream,
        "partition": partition,
        "offset": offset,
        "timestamp": _moment(given.get("timestamp"), BEGIN + timedelta(seconds=number - 1), place),
        "subject": str(given.get("subject", stream)),
        "headers": [(str(name), _bytes(value) or b"") for name, value in headers.items()],
    }


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode()


def _decoded(text: Any, place: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error:
        raise InvalidConfig(f"`base64` of {place} is `{text}`", hint="it must be bytes in Base64") from None


def _moment(given: Any, default: datetime, place: str) -> datetime:
    if given is None:
        return default
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise InvalidConfig(
            f"`timestamp` of {place} is `{given}`", hint="it must be a time such as `2026-01-01T00:00:00Z`"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _batches(inputs: list[list[list[Row]]]) -> tuple[tuple[tuple[Row, ...], ...], ...]:
    """Batch by batch; an input that has fewer batches has nothing in the last ones."""
    count = max(len(batches) for batches in inputs)
    return tuple(
        tuple(tuple(batches[number]) if number < len(batches) else () for batches in inputs) for number in range(count)
    )
