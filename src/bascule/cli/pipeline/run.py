"""`bascule pipeline init`, `check`, `run`: writes, checks and runs the file of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import Master, Pack
from bascule.cli.pipeline.silent_spark import quiet_session
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Server, Target, choose, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.finding import FAILED, OK, WARNING, Check
from bascule.cli.terminal.output import note, say, show_facts, show_json
from bascule.errors import BasculeError, CallerError, InvalidOption, StateError
from bascule.exits import styled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bascule.client.arrow.reader import FlightConnection
    from bascule.lake.delta.place import LakePlace
    from bascule.pipeline.checks import Finding
    from bascule.pipeline.spec.pipeline import PipelineSpec

PipelineFile = Annotated[
    Path, typer.Argument(help="The pipeline's file.", show_default=False, metavar="FILE", dir_okay=False)
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Use this context of `bascule context list`.", show_default=False),
]


def spec_of(file: Path, server: str | None, context: str | None) -> tuple[PipelineSpec, Target]:
    """The pipeline, with the brokers of the options, else those of the file, else those of the current context."""
    from bascule.pipeline.spec.pipeline import load

    spec = load(file)
    target = choose(server=server or (None if context else spec.servers), context=context)
    if spec.servers is not None and server is None and context is None:
        return spec, target
    return _at(spec, target), target


def spec_at(file: Path, target: Target) -> PipelineSpec:
    """The pipeline for a command that has a target: with the brokers of the file, unless the options select others."""
    from bascule.pipeline.spec.pipeline import load

    spec = load(file)
    is_asked_for = target.context != choose().context
    return _at(spec, target) if is_asked_for or spec.servers is None else spec


def _at(spec: PipelineSpec, target: Target) -> PipelineSpec:
    from bascule.pipeline.spec.sinks import BrokerConnection

    here = target.context
    token = target.client_options()["token"]
    connection = BrokerConnection(target.speaks_tls, here.tls_ca, here.tls_cert, here.tls_key, token)
    return spec.at(target.server, connection)


def init(
    file: PipelineFile,
    stream: Annotated[
        str, typer.Option("--stream", help="The stream to read.", autocompletion=completion.streams)
    ] = "orders",
) -> None:
    """Write a sample pipeline to FILE: it archives a stream; comments show the other settings."""
    from bascule.config.values.kinds import Unfit
    from bascule.pipeline.sample import sample
    from bascule.spark.options.declaration import StreamName

    try:
        StreamName().parse(stream)
    except Unfit as unfit:
        raise values.wrong("--stream", stream, str(unfit)) from None
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in file.stem) or "pipeline"
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(sample(name, stream))
    except FileExistsError:
        raise StateError(f"{file} exists already", hint="choose another name, or remove it") from None
    except OSError as error:
        raise CallerError(f"cannot write {file}: {error.strerror}") from None
    say(f"Wrote {file}, a pipeline that archives `{stream}`. Next: `bascule pipeline check {file}`")


def check(file: PipelineFile, server: Server = None, context: ContextName = None, as_json: Json = False) -> None:
    """Check whether the pipeline of FILE can run: brokers, streams, values, steps, columns, folders, checkpoint. Changes nothing."""
    from bascule.pipeline.checks import look_around, look_with_spark

    spec, target = spec_of(file, server, context)
    checks = _checks(look_around(spec), target, as_json)
    if not any(one.name in ("brokers", "source") and one.state == FAILED for one in checks):
        with quiet_session(f"check {spec.name}", None, spec.spark) as spark:
            checks += _checks(look_with_spark(spec, spark), target, as_json)
    failed = [one for one in checks if one.state == FAILED]
    if as_json:
        show_json(
            [{"name": one.name, "state": one.state, "found": one.found, "next_step": one.next_step} for one in checks]
        )
    if failed:
        raise StateError(f"{file} cannot run: {failed[0].name}: {failed[0].found}", hint=failed[0].next_step or None)
    if not as_json:
        say(f"{file} is ready to run.")


def _checks(findings: Iterable[Finding], target: Target, as_json: bool) -> list[Check]:
    checks = []
    for finding in findings:
        if finding.error is not None:
            explain(finding.error, target)
        state = FAILED if finding.error is not None else WARNING if finding.is_warning else OK
        made = Check(finding.name, state, finding.text, (finding.error and finding.error.hint) or "")
        checks.append(made)
        if not as_json:
            _print(made)
    return checks


def _print(made: Check) -> None:
    mark, colour = {OK: ("✓", "green"), WARNING: ("!", "yellow"), FAILED: ("✗", "red")}[made.state]
    styled(f"{mark} ", line_break=False, fg=colour)
    say(f"{made.name}: {made.found}" + (f"\n  {made.next_step}" if made.next_step and made.state == FAILED else ""))


def run(
    file: PipelineFile,
    once: Annotated[bool, typer.Option("--once", help="Process the existing messages, then exit.")] = False,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Process the messages from FROM up to, but not including, TO, with a checkpoint of its own; then exit.",
            metavar="FROM TO",
            show_default=False,
        ),
    ] = None,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Exit after so many batches.", metavar="N", show_default=False)
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve metrics for Prometheus at 127.0.0.1:PORT.", metavar="PORT", show_default=False
        ),
    ] = None,
    master: Master = None,
    pack: Pack = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            "--restarts",
            help="Restarts in a row after failures that may pass, such as a broker that is down. Default: `restart` of FILE.",
            min=0,
            show_default=False,
            metavar="COUNT",
        ),
    ] = None,
    in_host: Annotated[
        bool,
        typer.Option(
            "--host", help="With `--once`: run it in the Spark of `bascule pipeline host`, which is started already."
        ),
    ] = False,
    server: Server = None,
    context: ContextName = None,
) -> None:
    """Run the pipeline of FILE until it is stopped; each message reaches every sink exactly once. Run it again to continue."""
    from bascule.pipeline.checks import look_around, must_run
    from bascule.pipeline.display import RunOptions, run_displayed
    from bascule.pipeline.runs.bounds import bounded

    if in_host:
        of_this_process = {
            "--between": between,
            "--max-batches": max_batches,
            "--metrics-port": metrics_port,
            "--master": master,
            "--pack": pack,
            "--restarts": restarts,
            "--server": server,
        }
        _run_in_host(file, once, of_this_process)
        return
    spec, target = spec_of(file, server, context)
    if between is not None:
        spec, once = bounded(spec, _time(between[0]), _time(between[1])), True
    if restarts is not None:
        spec = replace(spec, restart=replace(spec.restart, attempts=restarts))
    try:
        warnings = must_run(look_around(spec))  # before Spark starts, which takes seconds
    except BasculeError as error:
        explain(error, target)
        raise
    with quiet_session(f"pipeline {spec.name}", master, spec.spark, pack) as spark:
        try:
            run_displayed(spark, spec, RunOptions(once, max_batches, metrics_port), warnings)
        except KeyboardInterrupt:
            note("stopped; run it again to continue")
            raise


def _time(text: str) -> datetime:
    """A bound of `--between`."""
    right = "a time such as `2026-11-15T09:30`, or `15m` for 15 minutes ago"
    try:
        found = values.stop("--between", text)
    except InvalidOption:
        raise values.wrong("--between", text, right) from None
    if not isinstance(found, datetime):
        raise values.wrong("--between", text, right)
    return found if found.tzinfo is not None else found.astimezone()


def _run_in_host(file: Path, once: bool, of_this_process: Mapping[str, object]) -> None:
    from bascule.cli.pipeline.host import run_hosted

    if not once:
        raise values.wrong(
            "--host", "given", "left out, or `--once` too; `bascule pipeline hosted --start` runs it for good"
        )
    for name, value in of_this_process.items():
        if value is not None:
            raise values.wrong(name, value, "left out: the host has its own")
    run_hosted(file, None)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


def show_status(file: Path, target: Target, *, as_json: bool) -> None:
    """Print the output of `bascule pipeline status FILE`."""
    from bascule.pipeline.status import pipeline_status

    document = pipeline_status(spec_at(file, target))
    if as_json:
        show_json(document)
        return
    lag = document["lag"]
    show_facts(
        (
            ("Pipeline", document["name"]),
            ("Running", document["running"]),
            ("Batches", document["batches"]),
            ("Last batch", document["last_batch"] or ""),
            ("Messages", document["messages"]),
            *((f"→ {name}", count) for name, count in document["sinks"].items()),
            ("Dead letters", document["dead_letters"]),
            *((f"{name} broken", count) for name, count in document["broken"].items()),
            *((("Too late", document["late"]),) if document["late"] is not None else ()),
            *_restart_facts(document["restarts"]),
            *((("Lost, offsets", document["lost"]),) if document["lost"] else ()),
            *((f"Behind, {unit}", lag[unit]) for unit in ("offsets", "bytes", "seconds")),
        )
    )


def _restart_facts(found: dict[str, Any] | None) -> tuple[tuple[str, object], ...]:
    if found is None:
        return ()
    last = (("Last failure", found["error"]), ("Next start", found["next"])) if found["failures"] else ()
    return (("Restarts", found["count"]), *last)


def archives_of(file: Path, target: Target) -> tuple[list[LakePlace], Callable[[], FlightConnection]]:
    """The archives that a pipeline writes, and a function that connects to its brokers: for `bascule pipeline verify FILE`."""
    from bascule.pipeline.checkpoint import PipelineCheckpoint
    from bascule.pipeline.sinks.archive import archive_options
    from bascule.pipeline.spec.sinks import ArchiveSink

    spec = spec_at(file, target)
    place = PipelineCheckpoint.of(spec).spark_path
    found = [archive_options(spec, sink, place) for sink in spec.sinks if isinstance(sink, ArchiveSink)]
    if not found:
        raise CallerError(f"{file} writes no archive", hint="only sinks `archive` can be verified: add one")
    return [one.place for one in found], found[0].tables
