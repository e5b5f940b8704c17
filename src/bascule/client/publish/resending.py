"""What a publisher has under way, and what of it has to be sent again: when a leader refused it, died, or was replaced.

A session knows its publishes by numbers. Here each number leads to its message until the ack has come. Whatever is sent again goes out
in the order it was first sent, and before anything newer of the same partition.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bascule.client.connection.retry import Backoff
from bascule.client.publish.publish_session import AckFuture
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable

KEPT_MIN: Final = 256
"""Up to so many messages nobody looks which of them have been acked behind one that was not."""

CALM_SECONDS: Final = 5.0
"""A partition that had no failure for so long begins with the shortest wait again."""


class Outgoing(NamedTuple):
    sequence: int
    """Of the message among the publisher's."""
    number: int
    """Of its publish among the session's."""
    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    expected_offset: int
    future: AckFuture
    deadline: float
    """On the monotonic clock: when it is given up."""
    sent_at: float
    led_by: str
    """The partition's leader then."""


FUTURE: Final = Outgoing._fields.index("future")


class UnderWay:
    """The messages of one session that may still have to be sent again, oldest first.

    Kept as the fields of an Outgoing: this is done for every message, and very few are ever sent again.
    """

    __slots__ = ("_count_max", "_messages")

    def __init__(self) -> None:
        self._messages: deque[tuple[Any, ...]] = deque()
        self._count_max = KEPT_MIN

    def add(self, message: tuple[Any, ...]) -> None:
        messages = self._messages
        messages.append(message)
        # Acks come in the order of messages, or nearly: two go for each that comes, until one is found that waits.
        if messages[0][FUTURE].done():
            messages.popleft()
            if messages and messages[0][FUTURE].done():
                messages.popleft()
        elif len(messages) > self._count_max:
            self._forget_answered()

    def take(self, number: int) -> Outgoing | None:
        for place, fields in enumerate(self._messages):
            if fields[1] == number:
                del self._messages[place]
                return Outgoing._make(fields)
        return None

    def take_partition(self, partition: int, led_by: str) -> list[Outgoing]:
        """Those without an answer that were sent while this broker led, oldest first."""
        waiting = self._waiting()
        wanted = (partition, led_by)
        self._messages = deque(one for one in waiting if (one.partition, one.led_by) != wanted)
        return [one for one in waiting if (one.partition, one.led_by) == wanted]

    @property
    def is_empty(self) -> bool:
        return not self._waiting()

    def waiting_since(self, sent_before: float) -> set[tuple[int, str]]:
        """Partitions with messages that were sent before that moment and have no answer, and who led them."""
        return {(one.partition, one.led_by) for one in self._waiting() if one.sent_at < sent_before}

    def _waiting(self) -> list[Outgoing]:
        self._forget_answered()
        return [Outgoing._make(fields) for fields in self._messages]

    def _forget_answered(self) -> None:
        self._messages = deque(fields for fields in self._messages if not fields[FUTURE].done())
        # Twice what is needed: each message is looked at a few times in its life, not once for every other.
        self._count_max = KEPT_MIN + 2 * len(self._messages)


@dataclass(slots=True)
class AgainQueue:
    """Messages of one partition that are to be sent again, the oldest first."""

    reasons: dict[int, BasculeError] = field(default_factory=dict)
    """By sequence: what is told if time is up before it could be sent."""
    backoff: Backoff = field(default_factory=Backoff)
    failed_at: float = 0.0
    is_sending: bool = False
    _messages: list[Outgoing] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Outgoing, reason: BasculeError, now: float) -> None:
        heapq.heappush(self._messages, message)  # sequences differ: nothing else is ever compared
        self.reasons[message.sequence] = reason
        if now - self.failed_at > CALM_SECONDS:
            self.backoff.reset()
        self.failed_at = now

    @property
    def first(self) -> Outgoing:
        return self._messages[0]

    def pop(self) -> BasculeError:
        """The first one is dealt with. Why it was here."""
        return self.reasons.pop(heapq.heappop(self._messages).sequence)


def may_be_sent_again(error: BasculeError, message: Outgoing, resend: bool | None, resends: bool) -> bool:
    """Surely not stored: unless the caller wants nothing sent twice. Perhaps stored: only if the caller does not mind finding it
    there twice, and never where it was to get a certain offset."""
    if isinstance(error, Unavailable):
        return resend is not False
    return resends and isinstance(error, OutcomeUnknown) and message.expected_offset < 0
