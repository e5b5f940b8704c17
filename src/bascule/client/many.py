"""Many messages at once: columns for the kernel, outcomes for the caller."""

from __future__ import annotations

import asyncio

from bascule.client.brokers import Brokers
from bascule.client.failures import publish_failure, unknown_outcome
from bascule.client.publish_call import call_publish, is_large
from bascule.client.publish_session import PublishSessions
from bascule.client.retry import Backoff, Deadline
from bascule.errors import BasculeError, Unavailable
from bascule.kernels.publish_window import (
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
) -> None:
    """Fills `offsets` and `errors`. `rows` are the places of values by partition."""
    deadline = Deadline.after(seconds)
    async with asyncio.TaskGroup() as group:
        for partition, places in rows.items():
            if places:
                target = PublishTarget(stream, partition, policy)
                group.create_task(_in_order(brokers, sessions, target, places, values, keys, deadline, offsets, errors))


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
) -> None:
    """One partition's: large ones alone, what lies between them at once."""
    small: list[int] = []
    for place in places:
        key = None if keys is None else keys[place]
        if not is_large(values[place], key, None):
            small.append(place)
            continue
        await _publish(sessions, target, small, values, keys, deadline, offsets, errors)
        small = []
        request = encode_publish_request(target, values[place], key)
        try:
            ack = await call_publish(brokers, "Publish", request, deadline.left)
        except BasculeError as error:
            errors[place] = error
        else:
            offsets[place] = -1 if ack is None else ack.offset
    await _publish(sessions, target, small, values, keys, deadline, offsets, errors)


async def _publish(
    sessions: PublishSessions,
    target: PublishTarget,
    places: list[int],
    values: list[bytes],
    keys: list[bytes | None] | None,
    deadline: Deadline,
    offsets: list[int],
    errors: dict[int, BasculeError],
) -> None:
    """Small ones. What was surely not sent goes to another session while there is time."""
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
            await done
            places = _take_outcomes(columns, places, offsets, errors)
        if places and not await backoff.wait(deadline):
            errors.update(dict.fromkeys(places, problem))
            return
    for place in places:
        errors[place] = Unavailable("the message was not sent in time")


def _take_outcomes(
    columns: PublishColumns, places: list[int], offsets: list[int], errors: dict[int, BasculeError]
) -> list[int]:
    """The places of those that were never sent."""
    again = []
    for place, offset, outcome in zip(places, columns.offsets, columns.outcomes, strict=True):
        if outcome == STORED:
            offsets[place] = offset
        elif outcome == SENT:
            continue
        elif outcome == NOT_SENT:
            again.append(place)
        elif outcome >= FAILED:
            errors[place] = publish_failure(outcome - FAILED, columns.texts.get(outcome, ""))
        else:
            errors[place] = unknown_outcome("the message was sent", "the connection was lost, or time was up")
    return again
