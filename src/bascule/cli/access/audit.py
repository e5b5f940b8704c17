"""`bascule audit …`: reads and checks audit records, in the files of servers and in the stream `__audit`."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal.output import printable, say, show_json
from bascule.errors import InvalidConfig, InvalidOption, StateError
from bascule.exits import EXIT_CODES
from bascule.names import AUDIT_STREAM, NAMESPACE_DEFAULT

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.security.audit.checking import AuditCheck, AuditReport

FAULTS_SHOWN: Final = 20
FOLLOW_SECONDS: Final = 0.5

app = typer.Typer(help="Read audit records, and check that they are whole.", no_args_is_help=True)

FromStream = Annotated[
    bool, typer.Option("--stream", help="Read the stream `__audit` of the cluster instead of a file.")
]
SecretFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="A file with the cluster secret: check the MAC of each record, too. May be repeated, for older secrets.",
        show_default=False,
    ),
]
Namespace = Annotated[str, typer.Option(metavar="NAME", help="`clustering.namespace` of the servers, for the MACs.")]


@app.command()
@connected
def verify(
    target: Target,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The file of `security.audit.file`; rotated ones before it, the oldest first.",
            show_default=False,
            metavar="[FILE...]",
        ),
    ] = None,
    stream: FromStream = False,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="OFFSET",
            help="First message of the stream to check. Default: the oldest.",
            show_default=False,
        ),
    ] = None,
    secret_file: SecretFiles = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="`audit.head` in the server's data directory, for the stream `audit.pending`: check that the newest records are "
            "there, too.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no record was changed, removed, inserted, moved or forged. Exits with code 3 if one was."""
    from bascule.security.audit.checking import AuditCheck
    from bascule.security.audit.spool import read_head

    _check_source(files or (), stream)
    if start is not None and not stream:
        raise InvalidOption("`--from` is given without `--stream`", hint="a file is checked from its beginning")
    keys = _keys(secret_file or (), namespace)
    last = None if head is None else read_head(head)
    if head is not None and last is None:
        raise InvalidConfig(
            f"{head} has no end of an audit log", hint="give `audit.head` or `audit.pending` of a data directory"
        )
    check = AuditCheck(keys, "" if last is None else last.hash, is_stream=stream)
    if stream:
        target.run(_check_stream, check, start)
    else:
        for number, line in enumerate(_lines(files or ()), start=1):
            check.add(number, line)
    report = check.report()
    place = "offset" if stream else "line"
    faults = [f"{place} {fault.place}: {fault.text}" for fault in report.faults]
    if last is not None and not report.has_head:
        faults.append(f"the end is missing: the last record of server {last.server} has the number {last.number}")
    if as_json:
        show_json(_document(report, faults))
    else:
        _show(report, faults, has_keys=bool(keys))
    if faults:
        raise typer.Exit(EXIT_CODES[StateError])


def _check_source(files: Sequence[Path], stream: bool) -> None:
    if bool(files) == stream:
        problem = "both a file and `--stream` are given" if stream else "no file is given"
        raise InvalidOption(
            problem, hint="give the file of `security.audit.file`, or `--stream` for the stream of a cluster"
        )


async def _check_stream(client: Client, check: AuditCheck, start: int | None) -> None:
    await _must_exist(client)
    async with client.subscribe(
        AUDIT_STREAM, start="earliest" if start is None else start, stop="latest"
    ) as subscription:
        async for message in subscription:
            check.add(message.offset, message.value or b"")


async def _must_exist(client: Client) -> None:
    if AUDIT_STREAM not in (await client.fetch_metadata([AUDIT_STREAM])).streams:
        raise StateError(
            "this cluster has no audit stream", hint="set `security.audit.stream.enabled: true` on all servers"
        )


def _keys(files: Sequence[Path], namespace: str) -> list[bytes]:
    from bascule.config.sections.cluster import split_secrets
    from bascule.net.nats.seal import SealKeys

    keys: list[bytes] = []
    for file in files:
        secrets = split_secrets(file.read_text("utf-8", "replace"))
        if not secrets:
            raise InvalidConfig(f"{file} has no cluster secret", hint="give the file of `cluster.secret.file`")
        keys += SealKeys(secrets, namespace).audit_keys()
    return keys


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


def _document(report: AuditReport, faults: list[str]) -> dict[str, Any]:
    trails = [
        {
            "server": one.server,
            "records": one.records,
            "runs": len(one.boots),
            "lost": one.lost,
            "first": one.first_number,
            "follows": one.follows,
            "last": one.last_hash,
        }
        for one in report.trails
    ]
    return {
        "whole": not faults,
        "records": report.records,
        "duplicates": report.duplicates,
        "servers": trails,
        "forged": [fault.place for fault in report.faults if fault.is_forged],
        "faults": faults,
    }


def _show(report: AuditReport, faults: list[str], *, has_keys: bool) -> None:
    for one in report.trails:
        lost = f", {one.lost} lost" if one.lost else ""
        say(f"Server {printable(one.server)}: {one.records} records, {len(one.boots)} runs{lost}, last {one.last_hash}")
        if one.follows:
            say(
                f"  The first one, number {one.first_number}, follows a record that is not here: {printable(one.follows)}"
            )
    if not has_keys and report.without_mac < report.records:
        say("The MACs were not checked: give --secret-file.")
    if report.duplicates:
        say(f"{report.duplicates} messages are exact copies of others: they were published again.")
    forged = sum(fault.is_forged for fault in report.faults)
    if forged:
        say(f"{forged} messages are forged: no broker of this cluster has written them.")
    for fault in faults[:FAULTS_SHOWN]:
        say(f"Broken: {printable(fault)}")
    if len(faults) > FAULTS_SHOWN:
        say(f"… and {len(faults) - FAULTS_SHOWN} more")
    if not faults:
        say(f"Whole: {report.records} records.")


@app.command()
@connected
def tail(
    target: Target,
    file: Annotated[
        Path | None, typer.Argument(help="The file of `security.audit.file`.", show_default=False, metavar="[FILE]")
    ] = None,
    stream: FromStream = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Number of records from the end.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new records, also after a rotation.")
    ] = False,
    secret_file: SecretFiles = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    as_json: Json = False,
) -> None:
    """Print the last records, one on a line. A record that is not signed as it should be is marked as forged."""
    _check_source([] if file is None else [file], stream)
    show = _Printer(_keys(secret_file or (), namespace), is_stream=stream, as_json=as_json)
    if file is None:
        target.run(_tail_stream, show, count, follow)
    else:
        _tail_file(show, file, count, follow)


def _tail_file(show: _Printer, file: Path, count: int, follow: bool) -> None:
    handle = file.open("rb")
    for line in deque(handle, maxlen=count):
        show(line.removesuffix(b"\n"))
    part = b""
    while follow:
        is_replaced = _is_replaced(file, handle)  # before the rest of the present file is read
        for line in handle:
            part += line
            if part.endswith(b"\n"):
                show(part.removesuffix(b"\n"))
                part = b""
        if is_replaced:
            handle.close()
            handle = file.open("rb")
            continue
        time.sleep(FOLLOW_SECONDS)
    handle.close()


async def _tail_stream(client: Client, show: _Printer, count: int, follow: bool) -> None:
    await _must_exist(client)
    newest = []
    async with client.subscribe(AUDIT_STREAM, start="latest", reverse=True) as subscription:
        async for message in subscription:
            newest.append(message)
            if len(newest) > count:
                break
    for message in reversed(newest[:count]):
        show(message.value or b"")
    if follow:
        start = newest[0].offset + 1 if newest else "earliest"
        async with client.subscribe(AUDIT_STREAM, start=start) as subscription:
            async for message in subscription:
                show(message.value or b"")


def _is_replaced(path: Path, handle: Any) -> bool:
    import os

    try:
        return not os.path.samestat(path.stat(), os.fstat(handle.fileno()))
    except FileNotFoundError:
        return False


class _Printer:
    """Prints records."""

    def __init__(self, keys: Sequence[bytes], *, is_stream: bool, as_json: bool) -> None:
        self._keys = keys
        self._is_stream = is_stream
        self._as_json = as_json

    def __call__(self, line: bytes) -> None:
        from bascule.security.audit.checking import forgery
        from bascule.security.audit.records import parse_record

        record = parse_record(line)
        if record is None:
            fault: str | None = "this is no audit record"
        else:
            fault = forgery(record, self._keys, is_stream=self._is_stream)
        if not self._as_json:
            text = _text(line) if record is None else _shown(record)
            mark = "FORGED" if self._is_stream or record is not None else "BROKEN"  # a crash may tear a line of a file
            say(printable(text if fault is None else f"{mark} ({fault}): {text}"))
        elif fault is None:
            say(line.decode("ascii"))
        else:
            say(json.dumps({"fault": fault, "value": _text(line)}))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _shown(record: dict[str, Any]) -> str:
    caller = f"{record['principal'] or '-'} {record['address'] or '-'}"
    shown = f"{record['time']} {record['server']} {caller} {record['action']} {record['resource']} {record['result']}"
    return f"{shown} {record['detail']}".rstrip()
