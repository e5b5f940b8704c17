"""The subjects that brokers of one cluster talk on. All begin with the namespace, so clusters can share a NATS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControlSubjects:
    namespace: str

    def raft(self, server_id: str) -> str:
        """Raft messages for one server."""
        return f"{self.namespace}.raft.metadata.{server_id}.message"

    @property
    def join(self) -> str:
        """Every server listens, only the leader answers."""
        return f"{self.namespace}.raft.metadata.join"

    @property
    def bootstrap(self) -> str:
        """Servers that were started as seed tell each other so."""
        return f"{self.namespace}.raft.metadata.bootstrap"

    @property
    def propagate(self) -> str:
        """Requests for the controller, which alone listens."""
        return f"{self.namespace}.raft.metadata.propagate"

    @property
    def info(self) -> str:
        """Every server answers with its address."""
        return f"{self.namespace}.raft.metadata.info"

    def info_inbox(self, server_id: str) -> str:
        """Where one server collects the answers."""
        return f"{self.namespace}.raft.metadata.fetch.{server_id}"

    def status(self, server_id: str) -> str:
        """How a partition is doing on one server."""
        return f"{self.namespace}.raft.metadata.status.{server_id}"

    def cursors(self, server_id: str) -> str:
        """Cursors that one server, the leader of their partition, is asked for."""
        return f"{self.namespace}.raft.metadata.cursors.{server_id}"

    def operations(self, server_id: str) -> str:
        """What one server is asked by others on behalf of whoever runs the cluster."""
        return f"{self.namespace}.raft.metadata.operations.{server_id}"

    @property
    def membership(self) -> str:
        """Whether a server still belongs to the cluster. Every server listens, only the controller answers."""
        return f"{self.namespace}.raft.metadata.membership"

    def replication_leader(self, server_id: str) -> str:
        """What followers ask one server, as leader of their partitions."""
        return f"{self.namespace}.replication.{server_id}.leader"

    def replication_follower(self, server_id: str) -> str:
        """What leaders answer and tell one server, as follower of their partitions."""
        return f"{self.namespace}.replication.{server_id}.follower"
