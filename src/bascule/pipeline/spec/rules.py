"""What a single key of a pipeline's file cannot know: which keys need each other, and in which order steps can stand."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Final

from bascule.config.values.duration import format_duration
from bascule.config.values.given import closest
from bascule.errors import BasculeError, InvalidConfig, InvalidOption
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import OTHERWISE, ArchiveSink, LatestSink, StreamSink
from bascule.pipeline.spec.sources import Missing, SourceSpec, ValueMode
from bascule.pipeline.spec.steps import (
    Dedup,
    Expect,
    Join,
    Late,
    Otherwise,
    Python,
    Sql,
    Step,
    Window,
    keeps_state,
    split_at_state,
    word_of,
)
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.value_options import ValueFraming

_NOT_CODE: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WINDOW: Final = re.compile(r"\b(session_window|window|window_time)\s*\(", re.IGNORECASE)

RULES_TAKEN: Final = frozenset({"decode", "event-time", "late"})
"""What dead letters name as rules that no step has."""


def check(spec: PipelineSpec, file: Path) -> None:
    """Raises InvalidConfig for the first thing that cannot be."""
    _check_source(spec, file)
    _check_order(spec, file)
    _check_steps(spec, file)
    _check_sinks(spec, file)
    _check_routes(spec, file)
    _check_dlq(spec, file)
    for name in spec.spark:
        if not name.startswith("spark."):
            raise _wrong(
                f"`spark.{name}` in {file} is no setting of Spark",
                "they begin with `spark.`, such as `spark.driver.memory`",
            )
    if (spec.connection.tls_cert is None) != (spec.connection.tls_key is None):
        raise _wrong(f"one of `connection.tls_cert` and `connection.tls_key` is missing in {file}", "give both or none")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def _check_source(spec: PipelineSpec, file: Path) -> None:
    source = spec.source
    said = {"stream": source.stream, "streams": source.streams, "pattern": source.pattern, "subject": source.subject}
    found = [name for name, value in said.items() if value is not None]
    if len(found) != 1:
        what = "nothing says" if not found else " and ".join(f"`{name}`" for name in found) + " both say"
        raise _wrong(
            f"`source` in {file}: {what} which streams to read",
            "set one of `stream`, `streams`, `pattern` and `subject`",
        )
    _check_reading(spec, source, "source", file)


def _check_reading(spec: PipelineSpec, source: SourceSpec, name: str, file: Path) -> None:
    reserved = {
        "servers",
        "subscribe",
        "stream",
        "subscribepattern",
        "subjectpattern",
        "assign",
        "path",
        "history",
        "ondataloss",
    }
    for option in source.options:
        if option.lower() in reserved or option.lower().startswith(("value", "tls", "token")):
            raise _wrong(
                f"`{name}.options.{option}` in {file} has a key of its own", "see `servers`, `connection` and `source`"
            )
    given = (source.value.schema, source.value.message, source.value.mode, source.value.schema_ids)
    if source.value.format is None and (any(given) or source.value.framing is not ValueFraming.NONE):
        raise _wrong(
            f"`{name}.value` in {file} has no `format`", "set it to `json`, `avro` or `protobuf`, or leave `value` out"
        )
    if source.time is not None and source.time.missing is Missing.DEAD_LETTER and spec.dlq is None:
        raise _no_dlq(f"`{name}.time.missing` in {file}")
    try:
        source_options({**spec.source_options(source), **source.value_options()}, STREAMING)
    except InvalidOption as error:
        raise _wrong(f"`{name}` in {file}: {error.message}", error.hint or "") from None


# ── steps ────────────────────────────────────────────────────────────────────────────────────────

ORDER: Final = ("dedup", "join", "window")
"""Steps that keep state, in the order that they can have."""


def _check_order(spec: PipelineSpec, file: Path) -> None:
    stateful = [(number, step) for number, step in enumerate(spec.steps, start=1) if keeps_state(step)]
    for (_, before), (number, step) in itertools.pairwise(stateful):
        word = word_of(step)
        if type(step) is type(before):
            what = "a stream" if word == "join" else "the stream"
            hint = (
                "put all of its key into it" if word == "dedup" else "a second pipeline can read what this one writes"
            )
            raise _wrong(f"`steps[{number}].{word}` in {file} is the second one", f"there can be one of {what}: {hint}")
        if ORDER.index(word) < ORDER.index(word_of(before)):
            raise _wrong(
                f"`steps[{number}].{word}` in {file} stands behind `{word_of(before)}`",
                "the order is `dedup`, `join` of a stream, `window`",
            )
    planned, _ = split_at_state(spec.steps)
    first = stateful[0][0] if stateful else 0
    for number, step in enumerate(planned, start=1):
        word, last = word_of(step), word_of(planned[-1])
        if isinstance(step, Sql):
            raise _wrong(
                f"`steps[{len(planned)}].{last}` in {file} stands behind a `sql`, which sees one batch at a time",
                f"put `{last}` before it",
            )
        if number > first and isinstance(step, (Expect, Python)):
            raise _wrong(
                f"`steps[{number}].{word}` in {file} stands between two steps that keep state",
                f"put it before `{word_of(planned[first - 1])}` or behind `{last}`: rows that it rejects are found in the batch "
                "that has their message",
            )


def _check_steps(spec: PipelineSpec, file: Path) -> None:
    names: set[str] = set()
    for number, step in enumerate(spec.steps, start=1):
        place = f"`steps[{number}].{word_of(step)}"
        _check_step(spec, step, place, file)
        rule = step.name if isinstance(step, Expect) else step.function if isinstance(step, Python) else None
        if rule is None:
            continue
        if rule in names or rule in RULES_TAKEN:
            raise _wrong(f"{place}.name` in {file} is `{rule}`, as that of another", "name each rule once")
        names.add(rule)
        assert isinstance(step, (Expect, Python))
        if step.otherwise is Otherwise.DEAD_LETTER and spec.dlq is None:
            raise _no_dlq(f"{place}.otherwise` in {file}")


def _check_step(spec: PipelineSpec, step: Step, place: str, file: Path) -> None:
    match step:
        case Sql() if (found := _WINDOW.search(_NOT_CODE.sub(" ", step.query))) is not None:
            raise _wrong(
                f"{place}` in {file} has `{found[1]}`, but sees one batch at a time: windows would be cut where batches end",
                "use a step `window`, which aggregates across batches",
            )
        case Dedup():
            _check_dedup(spec, step, place, file)
        case Window():
            _check_window(spec, step, place, file)
        case Join():
            _check_join(spec, step, place, file)


def _check_dedup(spec: PipelineSpec, step: Dedup, place: str, file: Path) -> None:
    watermark = spec.source.watermark_ns
    if watermark is not None and watermark != step.within_ns:
        raise _wrong(
            f"{place}.within` in {file} is `{format_duration(step.within_ns)}`, but `source.time.watermark` is "
            f"`{format_duration(watermark)}`",
            "make them equal: Spark keeps the keys for as long as it waits for late rows",
        )


def _check_window(spec: PipelineSpec, step: Window, place: str, file: Path) -> None:
    if (step.size_ns is None) == (step.session_ns is None):
        count = "both" if step.size_ns else "none"
        raise _wrong(f"{place}` in {file} has {count} of `size` and `session`", "give one of them")
    if step.every_ns is not None and (step.size_ns is None or step.every_ns > step.size_ns):
        raise _wrong(
            f"{place}.every` in {file} is `{format_duration(step.every_ns)}`", "it must be at most as long as `size`"
        )
    if spec.source.watermark_ns is None:
        raise _wrong(
            f"{place}` in {file} needs a watermark, which says when a window is complete",
            "set `source.time: {from: value.at, watermark: 10m}`; `from: timestamp` is the time of messages",
        )
    first = next(one for one in spec.steps if keeps_state(one))
    if step.late is Late.DEAD_LETTER and spec.dlq is None:
        raise _no_dlq(f"{place}.late` in {file}")
    if step.late is Late.DEAD_LETTER and first is not step:
        raise _wrong(
            f"{place}.late` in {file} is `dead-letter`, but `{word_of(first)}` before it drops late rows already",
            "leave `late` out: they are counted",
        )


def _check_join(spec: PipelineSpec, step: Join, place: str, file: Path) -> None:
    if (step.table is None) == (step.stream is None):
        count = "both" if step.table else "none"
        raise _wrong(f"{place}` in {file} has {count} of `table` and `stream`", "give one of them")
    if not step.target.replace("_", "a").isalnum() or not step.target.isascii() or step.target[0].isdigit():
        raise _wrong(f"{place}` in {file}: `{step.target}` is no name of a column in SQL", "name it with `as`")
    if step.table is not None:
        _check_table(spec, step, place, file)
        return
    if step.before_ns is None and step.after_ns is None:
        raise _wrong(
            f"{place}` in {file} has no bound in time, so that Spark would have to keep every row for ever",
            "set `before` and `after`: how much earlier and later than the row the other one may be",
        )
    for name, source in (("source", spec.source), (place.strip("`"), step.source)):
        if source.watermark_ns is None:
            raise _wrong(
                f"{place}` in {file} needs `{name}.time.watermark`, which says how long rows wait for their match",
                f"set `{name}.time: {{from: value.at, watermark: 10m}}`",
            )
    if step.stream in spec.streams and step.name is None:
        raise _wrong(
            f"{place}` in {file} joins `{step.stream}` with itself", "name the column of the other row with `as`"
        )
    _check_reading(spec, step.source, place.strip("`"), file)


def _check_table(spec: PipelineSpec, step: Join, place: str, file: Path) -> None:
    names = [table.name for table in spec.tables]
    if step.table not in names:
        close = closest(step.table or "", names)
        hint = (
            f"did you mean `{close}`?" if close else "there are " + (", ".join(f"`{name}`" for name in names) or "none")
        )
        raise _wrong(f"{place}.table` in {file} is `{step.table}`, which `tables` does not have", hint)
    for key, value in (
        ("before", step.before_ns),
        ("after", step.after_ns),
        ("time", step.time),
        ("options", step.more),
    ):
        if value is not None:
            raise _wrong(f"{place}.{key}` in {file} is for joins of streams", "leave it out")
    if step.value.format is not None:
        raise _wrong(f"{place}.value` in {file} is for joins of streams", "leave it out")


# ── sinks ────────────────────────────────────────────────────────────────────────────────────────


def _check_sinks(spec: PipelineSpec, file: Path) -> None:
    if not spec.sinks:
        raise _wrong(f"`sinks` in {file} is empty", "name one at least, `console` to look at rows")
    targets = [sink.target for sink in spec.sinks]
    for number, target in enumerate(targets, start=1):
        if target in targets[: number - 1]:
            raise _wrong(f"`sinks[{number}]` in {file} is `{target}`, which another sink writes", "write each once")
    read = [name for source in spec.inputs for name in source.names]
    stateful = next((step for step in spec.steps if isinstance(step, (Window, Join)) and keeps_state(step)), None)
    for number, sink in enumerate(spec.sinks, start=1):
        if isinstance(sink, StreamSink) and sink.stream in read:
            raise _wrong(
                f"`sinks[{number}].stream` in {file} is `{sink.stream}`, which the pipeline reads",
                "write another stream",
            )
        if isinstance(sink, StreamSink) and any(name.lower() == "maxbytesperpartition" for name in spec.source.options):
            raise _wrong(
                f"`source.options.maxBytesPerPartition` in {file} cuts a batch that comes again in other places than before",
                "a pipeline that writes a stream takes `maxRecordsPerPartition`",
            )
        if isinstance(sink, LatestSink) and stateful is not None:
            raise _wrong(
                f"`sinks[{number}].latest` in {file} keeps the newest message of a key, and rows behind `{word_of(stateful)}` are "
                "not in the order of messages",
                "write a stream with `compact: true`, and a table `latest` from it",
            )
    if len({table.name for table in spec.tables}) < len(spec.tables):
        raise _wrong(f"two of `tables` in {file} have the same name", "name each once")


def _check_routes(spec: PipelineSpec, file: Path) -> None:
    conditions = [sink.when for sink in spec.sinks if not isinstance(sink, ArchiveSink) and sink.when is not None]
    if OTHERWISE in conditions and all(condition == OTHERWISE for condition in conditions):
        raise _wrong(
            f"`when: otherwise` in {file} has nothing to be the rest of", "give another sink a `when` with a condition"
        )


def _check_dlq(spec: PipelineSpec, file: Path) -> None:
    if spec.dlq is None:
        if any(source.value.mode is ValueMode.DEAD_LETTER for source in spec.inputs):
            raise _no_dlq(f"`source.value.mode` in {file}")
        return
    if (spec.dlq.stream is None) == (spec.dlq.path is None):
        raise _wrong(
            f"`dlq` in {file} has {'both' if spec.dlq.path else 'none'} of `stream` and `path`", "give one of them"
        )
    taken = [*(name for source in spec.inputs for name in source.names)]
    taken += [sink.stream for sink in spec.sinks if isinstance(sink, StreamSink)]
    if spec.dlq.stream in taken:
        raise _wrong(
            f"`dlq.stream` in {file} is `{spec.dlq.stream}`, which the pipeline reads or writes", "name another stream"
        )


def _no_dlq(what: str) -> BasculeError:
    return _wrong(f"{what} is `dead-letter`, but there is no `dlq`", "add `dlq: {stream: …}`")


def _wrong(message: str, hint: str) -> BasculeError:
    return InvalidConfig(message, hint=hint)
