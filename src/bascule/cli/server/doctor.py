"""`bascule doctor`: checks everything between this machine and a working cluster; each failed check names the next step."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.target import facts
from bascule.cli.target.target import Target, connected
from bascule.cli.target.temporary import temporary_stream
from bascule.cli.terminal.finding import FAILED, OK, SKIPPED, WARNING, Check
from bascule.cli.terminal.output import printable, say, show_json
from bascule.config.values.shown import milliseconds, plural
from bascule.errors import (
    BasculeError,
    NotEnoughReplicas,
    OperatorError,
    OutcomeUnknown,
    PermissionDenied,
    StateError,
    Unavailable,
)
from bascule.exits import EXIT_CODES, styled
from bascule.names import NAMESPACE_DEFAULT
from bascule.net.sockets import is_loopback

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterMember
    from bascule.client.client import Client
    from bascule.client.connection.metadata import BrokerInfo, PartitionInfo, StreamInfo

MARKS: Final = {OK: ("✓", "green"), WARNING: ("!", "yellow"), FAILED: ("✗", "red"), SKIPPED: ("-", "bright_black")}

CLOCK_SECONDS_MAX: Final = 5.0
"""Maximum difference between the clocks; with more, reading from a time gives unexpected messages."""
DISK_FREE_SHARE_MIN: Final = 0.10
ROOM_HINT: Final = (
    "free space there, or lower the retention of streams: `bascule stream set NAME --max-age 7d --max-bytes 10GB`"
)
OPEN_FILES_MIN: Final = 4096
WRITE_SECONDS_MAX: Final = 5.0
"""Maximum time until all replicas have stored a message."""
CERTIFICATE_DAYS_MIN: Final = 14


class What(StrEnum):
    SPARK = "spark"


@connected
def doctor(
    target: Target,
    what: Annotated[
        What | None, typer.Argument(help="`spark`: check Spark on this machine instead.", show_default=False)
    ] = None,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="Also check this NATS server.", show_default=False)
    ] = None,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="With `--nats`: try to use the internal subjects of this namespace.")
    ] = NAMESPACE_DEFAULT,
    data_dir: Annotated[
        Path | None, typer.Option(help="Also check this data directory of a broker.", show_default=False)
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Also create a stream, publish to it, read it, compare the clocks, and delete it."
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="With `spark`: also check this directory for checkpoints.", show_default=False),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="With `spark`: also check the executors of this cluster.", show_default=False, metavar="URL"),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(help="With `--master`: the archive of `bascule spark pack`.", show_default=False, metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check address, connection, TLS, API, brokers, policies, streams, NATS, clocks and disk. Exits with code 3 if a check fails.

    `bascule doctor spark` checks Java, the packages of the extra, the workers' Python, whether pipelines can be read, and a directory
    for checkpoints; with `--write` it also runs a job, with `--master` one that looks at each executor.
    """
    import asyncio

    if what is What.SPARK:
        _report(_spark_checks(checkpoint, write, master, pack, quiet=as_json), as_json)
        return
    url = nats or target.context.nats
    _report(asyncio.run(_checks(target, url, namespace, data_dir, write, quiet=as_json)), as_json)


def _spark_checks(
    checkpoint: Path | None, write: bool, master: str | None, pack: Path | None, *, quiet: bool
) -> list[Check]:
    from bascule.cli.server import doctor_spark

    found = []
    for check in doctor_spark.look(checkpoint, write, master, pack):
        found.append(check)
        if not quiet:
            _print(check)
    return found


def _report(checks: list[Check], as_json: bool) -> None:
    if as_json:
        show_json(
            [{"check": one.name, "state": one.state, "found": one.found, "next": one.next_step} for one in checks]
        )
    failed = sum(one.state == FAILED for one in checks)
    warned = sum(one.state == WARNING for one in checks)
    if not as_json and not failed:
        say("All checks passed." if not warned else f"No check failed, {plural(warned, 'warning')}.")
    if failed:
        if not as_json:
            say(f"{plural(failed, 'check')} failed.")
        raise typer.Exit(EXIT_CODES[StateError])


async def _checks(
    target: Target, nats: str | None, namespace: str, data_dir: Path | None, write: bool, *, quiet: bool
) -> list[Check]:
    found = []
    async for check in _look(target, nats, namespace, data_dir, write):
        found.append(check)
        if not quiet:
            _print(check)
    return found


def _print(check: Check) -> None:
    """Print a check as soon as it is done."""
    if not sys.stdout.isatty():
        say("\t".join((check.name, check.state, printable(check.found), check.next_step or "-")))
        return
    mark, colour = MARKS[check.state]
    styled(f"{mark} ", fg=colour, line_break=False)
    styled(f"{check.name}: ", bold=True, line_break=False)
    typer.echo(printable(check.found))
    if check.next_step:
        styled(f"    {check.next_step}", fg="cyan")


async def _look(
    target: Target, nats: str | None, namespace: str, data_dir: Path | None, write: bool
) -> AsyncIterator[Check]:
    where = f"context `{target.name}`" if target.name else "the command line or the default"
    yield Check("server", OK, f"{target.server}, from {where}")
    reachable = False
    async for check in _network(target):
        reachable = reachable or (check.name.startswith("connection") and check.state == OK)
        yield check
    if reachable:
        async for check in _cluster(target, write):
            yield check
    else:
        yield Check("api", SKIPPED, "no broker can be reached")
    from bascule.cli.server import doctor_nats

    for check in await doctor_nats.look(nats, namespace, target.timeout):
        yield check
    if data_dir is not None:
        for check in _disk(data_dir):
            yield check
    yield _open_files()


# ── network ──────────────────────────────────────────────────────────────────────────────────────


async def _network(target: Target) -> AsyncIterator[Check]:
    import asyncio

    from bascule.client.connection.options import addresses

    loop = asyncio.get_running_loop()
    for host, port in addresses(target.server):
        shown = f"{host}:{port}"
        try:
            async with asyncio.timeout(target.timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            yield Check(
                f"name {host}", FAILED, _reason(error), "correct the host name, or the DNS setup of this machine"
            )
            continue
        yield Check(f"name {host}", OK, ", ".join(sorted({str(one[4][0]) for one in found})))
        started = time.monotonic()
        try:
            async with asyncio.timeout(target.timeout):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            yield Check(
                f"connection {shown}",
                FAILED,
                _reason(error),
                "start a broker there with `bascule server`, or open the port",
            )
            continue
        writer.close()
        yield Check(f"connection {shown}", OK, milliseconds(time.monotonic() - started))
        yield await _tls(target, host, port)


def _reason(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) and number > 0 else "timeout"


async def _tls(target: Target, host: str, port: int) -> Check:
    import asyncio
    import ssl

    from bascule.client.connection.options import tls_context

    if not target.speaks_tls:
        if is_loopback(host):
            return Check("tls", SKIPPED, "not used: the connection is not encrypted")
        return Check(
            "tls",
            WARNING,
            "not used: messages can be read and changed on the way",
            "set `tls.cert` and `tls.key` of the brokers",
        )
    try:
        context = tls_context(target.client_options()["tls"])
        async with asyncio.timeout(target.timeout):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return Check("tls", FAILED, error.verify_message, "give the certificate authority with `--tls-ca FILE`")
    except ssl.SSLError as error:
        return Check("tls", FAILED, error.reason or str(error), "if the broker does not use TLS, leave out `--tls`")
    except (OSError, TimeoutError):
        return Check(
            "tls", FAILED, "the handshake did not complete", "if the broker does not use TLS, leave out `--tls`"
        )
    except BasculeError as error:
        return Check("tls", FAILED, error.message, error.hint or "")
    certificate = writer.get_extra_info("peercert") or {}
    chosen = writer.get_extra_info("ssl_object").version()
    writer.close()
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    if days < CERTIFICATE_DAYS_MIN:
        return Check(
            "tls",
            WARNING,
            f"{chosen}; the certificate expires in {days:.0f} days",
            "renew it, then send SIGHUP to the broker",
        )
    return Check("tls", OK, f"{chosen}; the certificate is valid for {days:.0f} days")


# ── the cluster ──────────────────────────────────────────────────────────────────────────────────


async def _cluster(target: Target, write: bool) -> AsyncIterator[Check]:
    import bascule
    from bascule.cli.server import doctor_policies

    started = time.monotonic()
    try:
        async with bascule.connect(target.server, **target.client_options()) as client:
            metadata, streams = await facts.streams(client)
            yield Check("api", OK, f"answers in {milliseconds(time.monotonic() - started)}")
            for broker in metadata.brokers.values():
                yield await _broker(target, broker)
            for check in await _disks(client):
                yield check
            yield await _credentials(target, metadata.brokers.values())
            for check in await doctor_policies.look(target, metadata.brokers.values()):
                yield check
            yield _streams(streams)
            if facts.CURSORS_STREAM in {one.name for one in streams}:
                yield Check("cursors", OK, "kept, for consumer groups and readers")
            else:
                yield Check(
                    "cursors",
                    WARNING,
                    "not kept",
                    "consumer groups need them: set `cursors.stream.partitions` of the brokers",
                )
            if write:
                yield await _try_to_write(client)
            else:
                yield Check("clock", SKIPPED, "needs a published message: `bascule doctor --write`")
    except BasculeError as error:
        yield Check(
            "api", FAILED, error.message, "check that it is a broker, and whether it requires TLS or a certificate"
        )


async def _credentials(target: Target, brokers: Iterable[BrokerInfo]) -> Check:
    """Connect without a token and a client certificate, as a stranger would."""
    import bascule

    own = target.client_options()
    tls = bascule.TlsOptions(ca=target.context.tls_ca) if own["tls"] is not None else None
    try:
        async with bascule.connect(target.server, tls=tls, timeout=target.timeout):
            pass
    except PermissionDenied:
        return Check("credentials", OK, "the brokers refuse clients without credentials")
    except Unavailable:
        return Check("credentials", OK, "the brokers refuse clients without a certificate")
    outside = [broker.id for broker in brokers if not is_loopback(broker.host)]
    if outside:
        return Check(
            "credentials",
            WARNING,
            f"none are needed: every client that reaches {', '.join(outside)} may read, write and delete",
            "set `security.tokens.file`, `security.jwt.keys` or `tls.client.auth.enabled` of the brokers",
        )
    return Check("credentials", OK, "none are needed, and the brokers are reached from their own machine only")


async def _disks(client: Client) -> list[Check]:
    """The disk of each server that answers; nothing if the brokers do not tell."""
    from bascule.client.admin.cluster import ClusterAdmin

    try:
        status = await ClusterAdmin(client).status()
    except (OperatorError, PermissionDenied):
        return []
    return [_disk_of(one) for one in status.members if one.answers and one.data_size_bytes]


def _disk_of(member: ClusterMember) -> Check:
    name, share = f"disk of {member.id}", member.data_free_bytes / member.data_size_bytes
    found = f"{member.data_free_bytes / 1e9:,.1f} GB free ({share:.0%})"
    if member.disk_full:
        return Check(name, FAILED, f"full, partitions on this server refuse messages: {found}", ROOM_HINT)
    if share < DISK_FREE_SHARE_MIN:
        return Check(name, WARNING, found, ROOM_HINT)
    return Check(name, OK, found)


async def _broker(target: Target, broker: BrokerInfo) -> Check:
    """Connect to a broker at its advertised address, as clients do."""
    import asyncio

    name = f"broker {broker.id}"
    try:
        async with asyncio.timeout(target.timeout):
            _, writer = await asyncio.open_connection(broker.host, broker.port)
    except (OSError, TimeoutError):
        return Check(
            name,
            FAILED,
            f"its advertised address {broker.host}:{broker.port} cannot be reached from here",
            "start the broker; if it runs, set its `host` to a name that clients can reach",
        )
    writer.close()
    return Check(name, OK, f"{broker.host}:{broker.port}, leads {plural(broker.leader_count, 'partition')}")


def _streams(streams: list[StreamInfo]) -> Check:
    def those(wanted: Callable[[PartitionInfo], bool]) -> str:
        return ", ".join(one.name for one in streams if any(map(wanted, one.partitions.values())))

    problems, next_step = [], ""
    if headless := those(lambda one: not one.leader):
        problems, next_step = [f"without a leader: {headless}"], "start the brokers that have their replicas"
    for stream in streams:
        if (reason := facts.shortage(stream)) is not None:
            problems.append(reason)
            next_step = next_step or facts.SHORTAGE_HINT.replace("NAME", stream.name)
    if problems:
        return Check("streams", FAILED, "; ".join(problems), next_step)
    behind = those(lambda one: len(one.in_sync_replicas) < len(one.replicas))
    if behind:
        return Check(
            "streams", WARNING, f"under-replicated: {behind}", "`bascule cluster status` shows what is missing"
        )
    return Check("streams", OK, f"{plural(len(streams), 'stream')}, all with leaders and in sync")


async def _try_to_write(client: Client) -> Check:
    """A failure belongs to this check: until here the API has answered."""
    try:
        return await _write(client)
    except BasculeError as error:
        next_step = error.hint or "see the log of the brokers"
        return Check("write", FAILED, f"a message could not be stored and read: {error.message}", next_step)


async def _write(client: Client) -> Check:
    """Publish a message, read it back, and compare the broker's clock with ours."""
    async with temporary_stream(client, "bascule-doctor") as name:
        started, sent_at = time.monotonic(), time.time()
        try:
            ack = await client.publish(name, b"doctor", ack="all", timeout=WRITE_SECONDS_MAX)
        except OutcomeUnknown as error:
            # The reason why no ack came, if the stream shows it.
            reason = facts.shortage(await facts.one_stream(client, name))
            if reason is not None:
                raise NotEnoughReplicas(reason, hint=facts.SHORTAGE_HINT) from None
            raise Unavailable(
                f"no ack of all replicas within {WRITE_SECONDS_MAX:g} s: {error.message}",
                hint="`bascule cluster status` shows whether a server is down",
            ) from None
        seconds, answered_at = time.monotonic() - started, time.time()
        async for _ in client.subscribe(name, start="earliest", stop="latest"):
            pass
    received = sent_at if ack is None else ack.reception_timestamp / 1e9
    off = max(sent_at - received, received - answered_at, 0.0)
    if off > CLOCK_SECONDS_MAX:
        return Check(
            "clock",
            WARNING,
            f"the broker's clock differs from this machine's by {off:.1f} s",
            "synchronise both with NTP",
        )
    return Check(
        "clock",
        OK,
        f"agrees with the broker's; all replicas stored a message in {milliseconds(seconds)}, and it was read",
    )


# ── NATS and this machine ────────────────────────────────────────────────────────────────────────


def _disk(directory: Path) -> list[Check]:
    name = "data directory"
    if not directory.is_dir():
        return [Check(name, FAILED, f"{directory} is not a directory", "give the broker's `data.dir`")]
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return [Check(name, FAILED, f"{directory} is not readable and writable", "run as the broker's user")]
    usage = shutil.disk_usage(directory)
    share = usage.free / usage.total
    found = f"{usage.free / 1e9:,.1f} GB free ({share:.0%})"
    serving = (directory / "addresses.json").exists()
    checks = [Check(name, OK, f"{directory}, {'in use by a broker' if serving else 'not in use'}")]
    if share < DISK_FREE_SHARE_MIN:
        return [
            *checks,
            Check(
                "disk",
                WARNING,
                found,
                ROOM_HINT,
            ),
        ]
    return [*checks, Check("disk", OK, found)]


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < OPEN_FILES_MIN:
        return Check(
            "open files",
            WARNING,
            f"limited to {soft:,} here",
            f"raise the limit for a broker: `ulimit -n {OPEN_FILES_MIN * 16}`",
        )
    return Check("open files", OK, f"limited to {soft:,}" if soft > 0 else "not limited")
