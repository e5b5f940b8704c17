"""`bascule audit …`: reads and checks the audit log of a server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.target.target import Json
from bascule.cli.terminal.output import printable, say, show_json
from bascule.errors import InvalidConfig, StateError
from bascule.exits import EXIT_CODES

if TYPE_CHECKING:
    from bascule.security.audit.records import AuditReport

FAULTS_SHOWN: Final = 20
FOLLOW_SECONDS: Final = 0.5

app = typer.Typer(help="Read the audit log of a server, and check that it is whole.", no_args_is_help=True)


@app.command()
def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="The file of `security.audit.file`; rotated ones before it, the oldest first.",
            show_default=False,
            metavar="FILE...",
        ),
    ],
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A file with the cluster secret: check the MAC of each record, too. May be repeated, for older secrets.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="`clustering.namespace` of the server, for the MACs.")
    ] = "liftbridge-default",
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="`audit.head` in the server's data directory: check that the newest records are there, too.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no record was changed, removed, inserted or moved. Exits with code 3 if one was."""
    from bascule.security.audit.files import AuditHead
    from bascule.security.audit.records import verify_lines

    keys = _keys(secret_file or (), namespace)
    last = None if head is None else AuditHead.read(head)
    if head is not None and last is None:
        raise InvalidConfig(
            f"{head} has no end of an audit log", hint="give `audit.head` of the server's data directory"
        )
    report = verify_lines(_lines(files), keys, "" if last is None else last.hash)
    faults = [f"line {fault.line}: {fault.text}" for fault in report.faults]
    if last is not None and not report.has_head:
        faults.append(f"the end is missing: the last record of server {last.server} has the number {last.number}")
    if as_json:
        show_json(_document(report, faults))
    else:
        _show(report, faults, has_keys=bool(keys))
    if faults:
        raise typer.Exit(EXIT_CODES[StateError])


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
    return {"whole": not faults, "records": report.records, "servers": trails, "faults": faults}


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
    for fault in faults[:FAULTS_SHOWN]:
        say(f"Broken: {printable(fault)}")
    if len(faults) > FAULTS_SHOWN:
        say(f"… and {len(faults) - FAULTS_SHOWN} more")
    if not faults:
        say(f"Whole: {report.records} records.")


@app.command()
def tail(
    file: Annotated[
        Path, typer.Argument(help="The file of `security.audit.file`.", show_default=False, metavar="FILE")
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Number of records from the end.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new records, also after a rotation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the last records, one on a line."""
    handle = file.open("rb")
    for line in deque(handle, maxlen=count):
        _print_record(line, as_json)
    part = b""
    while follow:
        is_replaced = _is_replaced(file, handle)  # before the rest of the present file is read
        for line in handle:
            part += line
            if part.endswith(b"\n"):
                _print_record(part, as_json)
                part = b""
        if is_replaced:
            handle.close()
            handle = file.open("rb")
            continue
        time.sleep(FOLLOW_SECONDS)
    handle.close()


def _is_replaced(path: Path, handle: Any) -> bool:
    import os

    try:
        return not os.path.samestat(path.stat(), os.fstat(handle.fileno()))
    except FileNotFoundError:
        return False


def _print_record(line: bytes, as_json: bool) -> None:
    from bascule.security.audit.records import parse_record

    text = line.removesuffix(b"\n")
    if as_json:
        say(text.decode("ascii", "backslashreplace"))
        return
    record = parse_record(text)
    if record is None:
        say("(no audit record)")
        return
    caller = f"{record['principal'] or '-'} {record['address'] or '-'}"
    shown = f"{record['time']} {record['server']} {caller} {record['action']} {record['resource']} {record['result']}"
    say(printable(f"{shown} {record['detail']}".rstrip()))
