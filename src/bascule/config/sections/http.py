"""Monitoring: where metrics and health are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bascule.config.values.address import PORT_DEFAULT, Address
from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, HostPort

HTTP_PORT_DEFAULT: Final = PORT_DEFAULT + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """HTTP"""

    enabled: bool = setting(
        "http.enabled",
        Boolean(),
        True,
        meaning="Serve `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.",
        consequence="Costs nothing while nobody asks.",
    )
    listen: Address | None = setting(
        "http.listen",
        HostPort(),
        None,
        default_text="the host that `listen` binds to, port 9293",
        example="127.0.0.1:9293",
        meaning="The address and port that HTTP binds to.",
        consequence="Port 0 lets the system choose a free one; so does the default where `listen` has port 0, or where 9293 is taken "
        "already. TLS and client certificates are those of `listen`; with authorization on, `/metrics` is for whoever may call "
        "`FetchMetadata` on `*`.",
        advice="Metrics name streams, cursors and groups: bind them to a network that may know.",
    )

    def bind(self, listen: Address) -> Address:
        """Where HTTP binds, when the gRPC server binds to `listen`."""
        if self.listen is not None:
            return self.listen
        return Address(listen.host, HTTP_PORT_DEFAULT if listen.port else 0)
