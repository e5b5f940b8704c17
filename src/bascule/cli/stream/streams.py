"""`bascule stream …`: creates, lists, describes, changes, pauses and deletes streams, and makes them readonly."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.target import completion, facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import known, say, show_facts, show_json, show_rows
from bascule.config.values.shown import plural
from bascule.errors import CallerError, EndOfPartition, InvalidOption, OperatorError, PermissionDenied, StreamNotFound

if TYPE_CHECKING:
    from bascule.client.admin.streams import PartitionDescription
    from bascule.client.client import Client
    from bascule.client.connection.metadata import StreamInfo

app = typer.Typer(help="Create, list, describe, change, pause and delete streams.", no_args_is_help=True)

LIMITS: Final = "Retention and log files"
BEHAVIOUR: Final = "Behaviour"

Name = Annotated[
    str, typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="NAME")
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition", "-p", metavar="NUMBER", help="Only this partition; may be repeated.", show_default=False
    ),
]


def _limit(flag: str, meaning: str, metavar: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=meaning, rich_help_panel=LIMITS, show_default=False)


def _switch(flags: str, meaning: str) -> Any:
    return typer.Option(flags, help=meaning, rich_help_panel=BEHAVIOUR, show_default=False)


# ── create ───────────────────────────────────────────────────────────────────────────────────────


Subject = Annotated[
    str | None,
    typer.Option(help="The NATS subject; `*` and `>` are wildcards. Default: the stream's name.", show_default=False),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        "-r",
        min=-1,
        help="Replicas of each partition; -1 for one on every broker. Default: 1, or one more than `--min-in-sync` if that is above 1.",
        show_default=False,
    ),
]
QueueGroup = Annotated[
    str,
    typer.Option(
        help="Share the subject's messages with the other streams of this NATS queue group.", show_default=False
    ),
]
MaxBytes = Annotated[str | None, _limit("--max-bytes", "Retention: bytes per partition.", "SIZE")]
MaxAge = Annotated[str | None, _limit("--max-age", "Retention: age of a message.", "DURATION")]
SegmentBytes = Annotated[str | None, _limit("--segment-bytes", "Maximum size of a segment.", "SIZE")]
SegmentAge = Annotated[str | None, _limit("--segment-age", "Maximum age of a segment.", "DURATION")]
MaxMessages = Annotated[int | None, _limit("--max-messages", "Retention: messages per partition.", "COUNT")]
Cleaner = Annotated[str | None, _limit("--cleaner-interval", "Interval of retention and compaction.", "DURATION")]
Compact = Annotated[bool | None, _switch("--compact/--no-compact", "Keep only the newest message of each key.")]
MinLag = Annotated[
    str | None,
    _limit(
        "--compact-min-lag", "Keep a message this long after a newer one with its key, though compacted.", "DURATION"
    ),
]
Tombstones = Annotated[
    str | None,
    _limit("--tombstone-retention", "Keep messages that delete a key this long, though compacted.", "DURATION"),
]
Compression = Annotated[str | None, _limit("--compression", "How messages are compressed: none or zstd.", "WORD")]
Sync = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="What waits for the disk: `ack` an ack of all replicas, `always` every ack and reader, `interval` nothing.",
        rich_help_panel=BEHAVIOUR,
        show_default=False,
    ),
]
SyncInterval = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Force messages that nothing waits for to the disk this often.",
        rich_help_panel=BEHAVIOUR,
        show_default=False,
    ),
]
AutoPause = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Pause partitions after this idle time.", rich_help_panel=BEHAVIOUR, show_default=False
    ),
]
PauseSubscribed = Annotated[
    bool | None,
    _switch("--auto-pause-subscribed/--no-auto-pause-subscribed", "Also pause idle partitions with subscribers."),
]
MinInSync = Annotated[
    int | None,
    typer.Option(
        min=1, help="Minimum in-sync replicas to commit a message.", rich_help_panel=BEHAVIOUR, show_default=False
    ),
]
ExpectOffsets = Annotated[
    bool | None,
    _switch(
        "--expect-offsets/--no-expect-offsets", "Check the offsets that publishers expect (optimistic concurrency)."
    ),
]


@app.command()
@connected
def create(
    target: Target,
    name: Annotated[str, typer.Argument(help="The new stream's name.", show_default=False, metavar="NAME")],
    subject: Subject = None,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")] = 1,
    replicas: Replicas = None,
    group: QueueGroup = "",
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    max_age: MaxAge = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    cleaner_interval: Cleaner = None,
    compact: Compact = None,
    compact_min_lag: MinLag = None,
    tombstone_retention: Tombstones = None,
    compression: Compression = None,
    auto_pause: AutoPause = None,
    auto_pause_subscribed: PauseSubscribed = None,
    sync: Sync = None,
    sync_interval: SyncInterval = None,
    min_in_sync: MinInSync = None,
    expect_offsets: ExpectOffsets = None,
    encrypt: Annotated[bool | None, _switch("--encrypt/--no-encrypt", "Encrypt the stored messages.")] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the stream exists already.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a stream that stores the messages of a NATS subject. Options that are left out have the server's settings."""
    if replicas == 0:
        raise values.wrong("--replicas", replicas, "1 or greater, or -1 for every broker")
    settings: dict[str, Any] = {
        "partitions": partitions,
        "replication_factor": replicas,
        "group": group,
        "retention_max_bytes": values.size("--max-bytes", max_bytes),
        "retention_max_messages": _count("--max-messages", max_messages),
        "retention_max_age": values.duration("--max-age", max_age),
        "segment_max_bytes": values.size("--segment-bytes", segment_bytes),
        "segment_max_age": values.duration("--segment-age", segment_age),
        "cleaner_interval": values.duration("--cleaner-interval", cleaner_interval),
        "compact": compact,
        "compact_min_lag": values.duration("--compact-min-lag", compact_min_lag),
        "tombstone_retention": values.duration("--tombstone-retention", tombstone_retention),
        "compression": _word("compression", compression),
        "sync": _word("sync", sync),
        "sync_interval": values.duration("--sync-interval", sync_interval),
        "auto_pause_time": values.duration("--auto-pause", auto_pause),
        "auto_pause_disable_if_subscribers": None if auto_pause_subscribed is None else not auto_pause_subscribed,
        "min_insync_replicas": min_in_sync,
        "optimistic_concurrency_control": expect_offsets,
        "encryption": encrypt,
    }
    created, stream = target.run(_create, name, subject, settings, if_not_exists)
    if as_json:
        show_json(facts.stream_document(stream) | {"created_now": created})
    elif created:
        say(
            f"Created stream `{name}` on subject `{stream.subject}` with {plural(len(stream.partitions), 'partition')}."
        )
    else:
        say(f"Stream `{name}` exists already, on subject `{stream.subject}`.")


def _count(option: str, number: int | None) -> int | None:
    if number is not None and number < 0:
        raise values.wrong(option, number, "0 or greater; 0 means no limit")
    return number


def _word(setting: str, given: str | None) -> str | None:
    from bascule.client.connection.options import WORDS

    return None if given is None else values.choice(f"--{setting}", given, WORDS[setting])


async def _create(
    client: Client, name: str, subject: str | None, settings: dict[str, Any], if_not_exists: bool
) -> tuple[bool, StreamInfo]:
    from bascule.errors import StreamExists

    created = True
    try:
        await client.create_stream(name, subject, **settings)
    except StreamExists:
        if not if_not_exists:
            raise StreamExists(f"stream `{name}` exists already") from None
        created = False
    return created, await facts.one_stream(client, name)


# ── list and describe ────────────────────────────────────────────────────────────────────────────


@app.command("list")
@connected
def list_streams(
    target: Target,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include internal streams.")] = False,
    as_json: Json = False,
) -> None:
    """List the streams: name, subject, partitions, messages received so far, state, creation time."""
    _, found = target.run(facts.streams)
    shown = [stream for stream in found if everything or not facts.is_internal(stream.name)]
    if as_json:
        show_json([facts.stream_document(stream) for stream in shown])
        return
    if not shown and sys.stdout.isatty():
        say("There are no streams yet; `bascule stream create NAME` creates one.")
        return
    show_rows(
        ("Name", "Subject", "Partitions", "Received", "State", "Created"),
        [
            (
                one.name,
                one.subject,
                len(one.partitions),
                known(facts.received(one)),
                facts.stream_state(one),
                one.created,
            )
            for one in shown
        ],
        right=("Partitions", "Received"),
    )


@app.command()
@connected
def describe(target: Target, name: Name, as_json: Json = False) -> None:
    """Show a stream, its settings and its partitions: leader, in-sync replicas, offsets, bytes, state, time of the last message."""
    stream, stored = target.run(_describe, name)
    if as_json:
        show_json(_with_stored(facts.stream_document(stream), stored))
        return
    show_facts(
        [
            ("stream", stream.name),
            ("subject", stream.subject),
            ("created", stream.created),
            ("received", known(facts.received(stream))),
            ("state", facts.stream_state(stream)),
            ("bytes", "" if stored is None else sum(one.size_bytes for one in stored.values())),
            *facts.shown_settings(stream),
        ]
    )
    if sys.stdout.isatty():
        say("")
    show_rows(
        (
            "Partition",
            "Leader",
            "In sync",
            "Replicas",
            "Committed",
            "Newest",
            "State",
            "Last message",
            "Start",
            "Bytes",
        ),
        [
            (
                one.id,
                one.leader,
                ",".join(one.in_sync_replicas),
                ",".join(one.replicas),
                one.high_watermark,
                one.newest_offset,
                facts.state(stream, one),
                one.messages_received.latest or "",
                *_start_and_bytes(stored, one.id),
            )
            for one in stream.partitions.values()
        ],
        right=("Partition", "Committed", "Newest", "Start", "Bytes"),
    )


_Stored = dict[int, "PartitionDescription"]


async def _describe(client: Client, name: str) -> tuple[StreamInfo, _Stored | None]:
    """The stream, and what the leaders store, by partition; None if the brokers do not support the call or deny it."""
    from bascule.client.admin.streams import StreamAdmin

    stream = await facts.one_stream(client, name)
    try:
        described = await StreamAdmin(client).describe(name)
    except (OperatorError, PermissionDenied):
        return stream, None
    return stream, {one.partition: one for one in described.partitions}


def _start_and_bytes(stored: _Stored | None, number: int) -> tuple[object, object]:
    found = None if stored is None else stored.get(number)
    return ("", "") if found is None or found.error else (found.log_start_offset, found.size_bytes)


def _with_stored(document: dict[str, Any], stored: _Stored | None) -> dict[str, Any]:
    for partition in document["partitions"]:
        found = None if stored is None else stored.get(partition["partition"])
        is_known = found is not None and not found.error
        partition["log_start_offset"] = found.log_start_offset if is_known and found else None
        partition["size_bytes"] = found.size_bytes if is_known and found else None
        partition["messages"] = found.messages if is_known and found else None
        partition["first_message"] = found.first_message if is_known and found else None
    return document


# ── set ──────────────────────────────────────────────────────────────────────────────────────────


@app.command("set")
@connected
def set_settings(
    target: Target,
    name: Name,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    max_age: MaxAge = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    cleaner_interval: Cleaner = None,
    compact_min_lag: MinLag = None,
    tombstone_retention: Tombstones = None,
    auto_pause: AutoPause = None,
    auto_pause_subscribed: PauseSubscribed = None,
    sync_interval: SyncInterval = None,
    as_json: Json = False,
) -> None:
    """Change settings of a stream; those that are left out stay. Messages beyond lower limits are removed at once; 0 means no limit.

    The other settings of `stream create` are fixed when a stream is created.
    """
    settings: dict[str, Any] = {
        "retention_max_bytes": values.size("--max-bytes", max_bytes),
        "retention_max_messages": _count("--max-messages", max_messages),
        "retention_max_age": values.duration("--max-age", max_age),
        "segment_max_bytes": values.size("--segment-bytes", segment_bytes),
        "segment_max_age": values.duration("--segment-age", segment_age),
        "cleaner_interval": values.duration("--cleaner-interval", cleaner_interval),
        "compact_min_lag": values.duration("--compact-min-lag", compact_min_lag),
        "tombstone_retention": values.duration("--tombstone-retention", tombstone_retention),
        "auto_pause_time": values.duration("--auto-pause", auto_pause),
        "auto_pause_disable_if_subscribers": None if auto_pause_subscribed is None else not auto_pause_subscribed,
        "sync_interval": values.duration("--sync-interval", sync_interval),
    }
    if all(value is None for value in settings.values()):
        raise InvalidOption("no setting is given", hint="give at least one, such as `--max-age 7d`")
    stream = target.run(_set, name, settings)
    if as_json:
        show_json(facts.stream_document(stream))
    else:
        say(f"Changed stream `{name}`.")


async def _set(client: Client, name: str, settings: dict[str, Any]) -> StreamInfo:
    from bascule.client.admin.streams import StreamAdmin

    try:
        await StreamAdmin(client).set(name, **settings)
    except StreamNotFound:
        raise StreamNotFound(f"there is no stream `{name}`") from None
    return await facts.one_stream(client, name)


# ── delete, pause, resume, readonly ──────────────────────────────────────────────────────────────


@app.command()
@connected
def delete(
    target: Target,
    names: Annotated[
        list[str],
        typer.Argument(help="The streams.", show_default=False, autocompletion=completion.streams, metavar="NAME..."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete streams and all their messages. Asks for confirmation; scripts give `--yes`."""
    if not yes:
        shown = ", ".join(f"`{name}`" for name in names)
        if not sys.stdin.isatty():
            raise CallerError(f"{shown} would be deleted with all messages", hint="give `--yes` to confirm")
        if not typer.confirm(f"Delete {shown} and all messages?", err=True):
            raise typer.Exit(1)
    target.run(_delete, names)
    for name in names:
        say(f"Deleted stream `{name}`.")


async def _delete(client: Client, names: list[str]) -> None:
    # Delete nothing if one of the names does not exist.
    await facts.streams(client, names)
    for name in names:
        await client.delete_stream(name)


@app.command()
@connected
def pause(
    target: Target,
    name: Name,
    partition: Partitions = None,
    resume_all: Annotated[
        bool, typer.Option("--resume-all", help="A later publish to one of the paused partitions resumes all of them.")
    ] = False,
) -> None:
    """Pause a stream: until it is resumed, its partitions store no messages from NATS and keep no files open."""
    numbers = values.partitions("--partition", partition or ()) or []
    target.run(_on_partitions, name, numbers, "pause", resume_all)
    say(f"Paused {_what(name, numbers)}.")


@app.command()
@connected
def resume(target: Target, name: Name, partition: Partitions = None) -> None:
    """Resume paused partitions."""
    numbers = values.partitions("--partition", partition or ()) or []
    resumed = target.run(_resume, name, numbers)
    if resumed:
        say(f"Resumed {_what(name, resumed)}.")
    else:
        say(f"Nothing to resume in {_what(name, numbers)}.")


@app.command()
@connected
def readonly(
    target: Target,
    name: Name,
    partition: Partitions = None,
    off: Annotated[bool, typer.Option("--off", help="Make it writable again.")] = False,
) -> None:
    """Make a stream readonly: new messages are refused, stored ones can be read. `--off` makes it writable again."""
    numbers = values.partitions("--partition", partition or ()) or []
    target.run(_on_partitions, name, numbers, "readonly", not off)
    what = _what(name, numbers)
    say(f"{what[0].upper()}{what[1:]} {'is' if len(numbers) < 2 else 'are'} {'writable again' if off else 'readonly'}.")


def _what(name: str, numbers: list[int]) -> str:
    if not numbers:
        return f"stream `{name}`"
    several = "s" if len(numbers) > 1 else ""
    return f"partition{several} {', '.join(map(str, numbers))} of stream `{name}`"


async def _on_partitions(client: Client, name: str, numbers: list[int], action: str, flag: bool) -> None:
    await _checked(client, name, numbers)
    if action == "pause":
        await client.pause_stream(name, numbers, resume_all=flag)
    else:
        await client.set_readonly(name, numbers, flag)


async def _checked(client: Client, name: str, numbers: list[int]) -> StreamInfo:
    """The stream. Raises if it does not exist or lacks one of these partitions."""
    found = (await client.fetch_metadata([name])).streams.get(name)
    if found is None:
        raise StreamNotFound(f"there is no stream `{name}`")
    for number in numbers:
        if number not in found.partitions:
            raise values.no_partition(number, facts.partitions_of(found))
    return found


async def _resume(client: Client, name: str, numbers: list[int]) -> list[int]:
    """Resume paused partitions by subscribing with `resume` and closing the subscription: the API has no call of its own."""
    stream = await _checked(client, name, numbers)
    paused = [one.id for one in stream.partitions.values() if one.paused and one.id in (numbers or stream.partitions)]
    for number in paused:
        try:
            async with client.subscribe(name, partition=number, start="new", resume=True):
                pass
        except EndOfPartition:
            pass  # the partition is readonly and at its end; it was resumed
    return paused
