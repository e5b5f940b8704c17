"""The subjects that the brokers of a cluster use. All begin with the namespace, so that clusters can share a NATS system.

No broker publishes on the subjects of Liftbridge's control plane, `<namespace>.raft.metadata.…`, except a survey that changes nothing:
a Liftbridge server stops at a bootstrap message of another server, and adds a server that sends a join request to its Raft group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEAL_HEAD: Final = b"\x5e\xa1\x01"
"""Start of a sealed message on these subjects: magic number and version. See seal.py."""


@dataclass(frozen=True, slots=True)
class ControlSubjects:
    namespace: str

    def raft(self, server_id: str) -> str:
        """Raft messages for one server."""
        return f"{self.namespace}.control.{server_id}.message"

    @property
    def join(self) -> str:
        """All servers listen, only the leader answers."""
        return f"{self.namespace}.control.join"

    @property
    def bootstrap(self) -> str:
        """Announcements of servers that were started as seed."""
        return f"{self.namespace}.control.bootstrap"

    @property
    def propagate(self) -> str:
        """Requests to the controller, the only listener."""
        return f"{self.namespace}.control.propagate"

    @property
    def info(self) -> str:
        """Every server answers with its address."""
        return f"{self.namespace}.control.info"

    @property
    def inbox(self) -> str:
        """Answers to requests of servers; each adds a random token and a number."""
        return f"{self.namespace}.inbox"

    def info_inbox(self, server_id: str) -> str:
        """Answers to one server's request for addresses."""
        return f"{self.namespace}.control.fetch.{server_id}"

    def status(self, server_id: str) -> str:
        """Requests for a partition's status on one server."""
        return f"{self.namespace}.control.status.{server_id}"

    def cursors(self, server_id: str) -> str:
        """Requests for cursors to one server, the leader of their partition."""
        return f"{self.namespace}.control.cursors.{server_id}"

    def operations(self, server_id: str) -> str:
        """Operations that one server executes for another, such as a drain."""
        return f"{self.namespace}.control.operations.{server_id}"

    def hand_overs(self, server_id: str) -> str:
        """Requests of a partition's leader to one server, its successor."""
        return f"{self.namespace}.control.handover.{server_id}"

    @property
    def membership(self) -> str:
        """Requests whether a server belongs to the cluster. All servers listen, only the controller answers."""
        return f"{self.namespace}.control.membership"

    @property
    def liftbridge_info(self) -> str:
        """Every server of a Liftbridge cluster answers with its address. Brokers do not listen here."""
        return f"{self.namespace}.raft.metadata.info"

    @property
    def liftbridge_bootstrap(self) -> str:
        """Announcements of Liftbridge servers that were started as seed. Brokers never publish here."""
        return f"{self.namespace}.raft.metadata.bootstrap"

    @property
    def liftbridge_join(self) -> str:
        """Join requests of Liftbridge servers. Brokers never publish here."""
        return f"{self.namespace}.raft.metadata.join"

    def replication_leader(self, server_id: str) -> str:
        """Fetch requests of followers to one server, the leader of their partitions."""
        return f"{self.namespace}.replication.{server_id}.leader"

    def replication_follower(self, server_id: str) -> str:
        """Responses and notices of leaders to one server, a follower of their partitions."""
        return f"{self.namespace}.replication.{server_id}.follower"
