"""Two replication links without a NATS between them: the test carries their bytes, and may spoil them on the way."""

from __future__ import annotations

import asyncio
from typing import Any

from bascule.net.nats.link import LinkOptions, NatsLink
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.messages import Message
from bascule.partition.replication.link import ReplicationLink

Heard = tuple[str, PartitionKey, Any]
"""Sender, partition, message."""


def replication_link(server_id: str, *servers: str, **options: Any) -> tuple[ReplicationLink, list[Heard]]:
    """A link that is not connected yet, and the list of all that it will hear."""
    link = ReplicationLink(NatsLink(LinkOptions(servers=servers, name=server_id, **options)), "test", server_id)
    heard: list[Heard] = []

    def hear(sender: str, key: PartitionKey, message: Message, _now_ns: int) -> None:
        heard.append((sender, key, message))

    link.on_request = hear
    link.on_answer = hear
    return link, heard


class ReplicationWire:
    """From `a` to `b`."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.a, self.heard_by_a = replication_link("a", "nats://127.0.0.1:1")
        self.b, self.heard = replication_link("b", "nats://127.0.0.1:1")
        for link in (self.a, self.b):
            link.link.reader.connected = True
            link.link.reader.max_payload = max_payload
            link.start()
            link.link.output.clear()

    async def say(self, *said: tuple[PartitionKey, Message]) -> list[tuple[str, bytes]]:
        """Say it to `b` in one turn. Subjects and payloads as they left."""
        for key, message in said:
            self.a.send("b", key, message)
        assert len(self.a.link.output) == 0
        await asyncio.sleep(0)
        left = published(bytes(self.a.link.output))
        self.a.link.output.clear()
        return left

    def bring(self, subject: str, payload: bytes) -> None:
        """It arrives at `b`."""
        sid = {"test.replication.b.leader": 1, "test.replication.b.follower": 2}[subject]
        self.b.link.reader.examine(b"MSG %b %d %d\r\n%b\r\n" % (subject.encode(), sid, len(payload), payload))

    async def carry(self, *said: tuple[PartitionKey, Message]) -> list[tuple[str, bytes]]:
        messages = await self.say(*said)
        for subject, payload in messages:
            self.bring(subject, payload)
        return messages


def published(output: bytes) -> list[tuple[str, bytes]]:
    """What stands in the output of a link: subjects and payloads."""
    found = []
    while output:
        line, _, rest = output.partition(b"\r\n")
        word, subject, size = line.split(b" ")
        assert word == b"PUB"
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        found.append((subject.decode(), rest[: int(size)]))
        output = rest[int(size) + 2 :]
    return found
