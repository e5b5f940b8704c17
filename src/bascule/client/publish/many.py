"""Many messages at once: columns for the kernel, outcomes for the caller."""

from __future__ import annotations

import asyncio
from time import monotonic

from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import publish_failure, unknown_outcome
from bascule.client.connection.retry import LEADER_CHECK_SECONDS, Backoff, Deadline
from bascule.client.publish.publish_call import call_publish, is_large
from bascule.client.publish.publish_session import EXPIRY_SECONDS, PublishSessions
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.kernels.window.window import (
    FAILED,
    NOT_SENT,
    SENT,
    STORED,
    PublishColumns,
    PublishTarget,
    encode_publish_request,
)


async def publish_many(
    brokers: Brokers,
    sessions: PublishSessions,
    stream: str,
    policy: int,
    rows: dict[int, list[int]],
    values: list[bytes],
    keys: list[bytes | None] | None,
    seconds: float,
    offsets: list[int],
    errors: dict[int, BasculeError],
    *,
    resends: bool = False,
) -> None:
    """Fills `offsets` and `errors`. `rows` are the places of values by partition."""
    deadline = Deadline.after(seconds)
    async with asyncio.TaskGroup() as group:
        for partition, places in rows.items():
            if places:
                target = PublishTarget(stream, partition, policy)
                work = _in_order(brokers, sessions, target, places, values, keys, deadline, offsets, errors, resends)
                group.create_task(work)


async def _in_order(
    brokers: Brokers,
    sessions: PublishSessions,
    target: PublishTarget,
    places: list[int],
    values: list[bytes],
    keys: list[bytes | None] | None,
    deadline: Deadline,
    offsets: list[int],
    errors: dict[int, BasculeError],
    resends: bool,
) -> None:
    """One partition's: large ones alone, what lies between them at once."""
    small: list[int] = []
    for place in places:
        key = None if keys is None else keys[place]
        if not is_large(values[place], key, None):
            small.append(place)
            continue
        await _publish(sessions, target, small, values, keys, deadline, offsets, errors, resends)
        small = []
        request = encode_publish_request(target, values[place], key)
        try:
            ack = await call_publish(
                brokers,
                "Publish",
                request,
                deadline.left,
                resend_to=(target.stream, target.partition) if resends else None,
            )
        except BasculeError as error:
            errors[place] = error
        else:
            offsets[place] = -1 if ack is None else ack.offset
    await _publish(sessions, target, small, values, keys, deadline, offsets, errors, resends)


async def _publish(
    sessions: PublishSessions,
    target: PublishTarget,
    places: list[int],
    values: list[bytes],
    keys: list[bytes | None] | None,
    deadline: Deadline,
    offsets: list[int],
    errors: dict[int, BasculeError],
    resends: bool,
) -> None:
    """Small ones. What is surely not stored goes to another session while there is time, and with `resends` also what may be."""
    backoff = Backoff()
    while places:
        problem: BasculeError = Unavailable("the messages were not sent in time")
        try:
            session = await sessions.get(target.stream, target.partition, deadline)
            await session.wait_for_room(deadline)
        except TimeoutError:
            break
        except BasculeError as error:
            problem = error
            if not isinstance(error, Unavailable):
                errors.update(dict.fromkeys(places, error))
                return
        else:
            done: asyncio.Future[PublishColumns] = asyncio.get_running_loop().create_future()
            columns = PublishColumns(
                target,
                [values[place] for place in places],
                keys=None if keys is None else [keys[place] for place in places],
                waiter=done,
                deadline=deadline.at,
            )
            session.publish_columns(columns)
            await (answered(sessions, columns, done, deadline) if resends else done)
            places, unknown = _take_outcomes(columns, places, offsets, errors, resends)
            problem = unknown or problem
        if places and not await backoff.wait(deadline):
            errors.update(dict.fromkeys(places, problem))
            return
    for place in places:
        errors[place] = Unavailable("the message was not sent in time")


async def answered(
    sessions: PublishSessions, columns: PublishColumns, done: asyncio.Future[PublishColumns], deadline: Deadline
) -> None:
    """Until every row has its outcome, or another broker leads the partition: then none is waited for any longer."""
    stream, partition = columns.target.stream, columns.target.partition
    led_by = sessions.leader_of(stream, partition)
    while not (await asyncio.wait([done], timeout=LEADER_CHECK_SECONDS))[0]:
        before = columns.answered
        has_moved = await sessions.has_moved(stream, partition, led_by, deadline)
        if has_moved and columns.answered == before and not columns.done:
            columns.deadline = monotonic()  # what has not been sent is not sent there
            await asyncio.sleep(2 * EXPIRY_SECONDS)
            return


def _take_outcomes(
    columns: PublishColumns, places: list[int], offsets: list[int], errors: dict[int, BasculeError], resends: bool
) -> tuple[list[int], BasculeError | None]:
    """The places of those that are sent again, and what is told of them if there is no time for it."""
    again = []
    unknown: BasculeError | None = None
    for place, offset, outcome in zip(places, columns.offsets, columns.outcomes, strict=True):
        if outcome == STORED:
            offsets[place] = offset
        elif outcome == SENT:
            continue
        elif outcome == NOT_SENT:
            again.append(place)
        else:
            error = _failure(outcome, columns)
            if isinstance(error, Unavailable) or (resends and isinstance(error, OutcomeUnknown)):
                again.append(place)
                unknown = error
            else:
                errors[place] = error
    return again, unknown


def _failure(outcome: int, columns: PublishColumns) -> BasculeError:
    if outcome >= FAILED:
        return publish_failure(outcome - FAILED, columns.texts.get(outcome, ""))
    return unknown_outcome("the message was sent", "the connection was lost, or time was up")
