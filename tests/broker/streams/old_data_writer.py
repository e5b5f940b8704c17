"""Wrote `metadata_directory/`, which stays as it is: `python -m tests.broker.streams.old_data_writer DIRECTORY` writes another one.

A broker behind TLS with policies in the cluster's metadata and a Raft snapshot every 20 entries. Its data directory holds a snapshot
and later entries, policies, a consumer group with two members, cursors, a stream from which retention removed segments, a compacted
one, and a compressed one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import bascule
from bascule.client.admin.cluster import ClusterAdmin
from tests.support.api_client import Api, pb
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.waiting import eventually

NAMESPACE: Final = "fixture"
SERVER: Final = "fixture-server"
SNAPSHOT_ENTRIES: Final = 20
POLICIES: Final = ("p, bob, stream:orders, Subscribe", "p, role:writers, stream:*, Publish", "g, eve, role:writers")
GROUP: Final = "workers"
MEMBERS: Final = ("one", "two")
CURSORS: Final = {"reader": 7, "archive": 12}
MESSAGES: Final = 200
KEYS: Final = 5
CLEANED: Final = {"segmentMaxBytes": 4096, "cleanerInterval": 100}
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "orders": {"partitions": 2},
    "retained": {**CLEANED, "retentionMaxMessages": 50},
    "latest": {**CLEANED, "compactEnabled": True, "compactMinLag": 0},
    "packed": {"compression": "zstd"},
}


def value_of(stream: str, number: int) -> bytes:
    return b"%b %d " % (stream.encode(), number) * (300 if stream == "packed" else 10)


class PolicedBroker:
    """A broker on this data directory whose administrator is `root`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory)
        server = self.authority.issue("server")
        self.root = self.authority.issue("root")
        config = {
            "clustering.namespace": NAMESPACE,
            "clustering.server.id": SERVER,
            "clustering.raft.snapshot.threshold": SNAPSHOT_ENTRIES,
            "cursors.stream.partitions": 1,
            "groups.consumer.timeout": "1h",
            "tls.cert": str(server.cert),
            "tls.key": str(server.key),
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": str(self.authority.file),
            "tls.client.authz.enabled": True,
            "security.policies.source": "cluster",
            "security.policies.admins": "root",
        }
        self.process = BrokerProcess(directory / "broker", config=config)

    @contextmanager
    def running(self) -> Iterator[Api]:
        """The API for `root`, while the broker runs; then it is stopped."""
        self.process.launch()
        try:
            api = eventually(self._served, "the broker serves")
            yield api
            api.close()
            assert self.process.stop() == 0, self.process.tail()
        finally:
            self.process.kill()

    def _served(self) -> Api | None:
        assert self.process.is_running, self.process.tail()
        with suppress(FileNotFoundError, json.JSONDecodeError):
            self.process.address = json.loads(self.process.addresses_file.read_text())["grpc"]
            return Api(self.process.address, self.authority.credentials(self.root))
        return None

    def policies(self, *added: str) -> tuple[str, ...]:
        """The policy of the cluster, after lines were added to it."""

        async def work() -> tuple[str, ...]:
            tls = bascule.TlsOptions(ca=self.authority.file, cert=self.root.cert, key=self.root.key)
            async with bascule.connect(self.process.address, timeout=60.0, tls=tls) as client:
                admin = ClusterAdmin(client)
                if added:
                    await admin.grant(added)
                return (await admin.policies()).lines

        return asyncio.run(work())


def _fill(api: Api, broker: PolicedBroker) -> None:
    for name, settings in STREAMS.items():
        api.CreateStream(name=name, subject=name, **settings)
    for name in STREAMS:
        for number in range(MESSAGES):
            key = b"k%d" % (number % KEYS) if name == "latest" else b""
            api.publish(name, value_of(name, number), key=key, ackPolicy=pb.ALL)
    broker.policies(*POLICIES)
    for number in range(SNAPSHOT_ENTRIES):  # entries that a snapshot replaces
        api.CreateStream(name=f"gone-{number}", subject=f"gone-{number}")
        api.DeleteStream(name=f"gone-{number}")
    for member in MEMBERS:
        api.JoinConsumerGroup(groupId=GROUP, consumerId=member, streams=["orders"])
    for name, offset in CURSORS.items():
        api.SetCursor(stream="orders", partition=0, cursorId=name, offset=offset)
    api.SetStreamReadonly(name="packed", partitions=[0], readonly=True)
    eventually(lambda: first_offset(api, "retained") > 0, "retention has removed a segment")
    eventually(lambda: len(api.read("latest")) < MESSAGES, "compaction has removed messages")


def first_offset(api: Api, stream: str) -> int:
    return int(api.read(stream)[0].offset)


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        broker = PolicedBroker(Path(temporary))
        with broker.running() as api:
            _fill(api, broker)
        shutil.copytree(broker.process.data, target, ignore=shutil.ignore_patterns("cluster.secret", "nats"))


if __name__ == "__main__":
    main()
