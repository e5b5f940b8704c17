"""The HTTP server for metrics and health checks."""

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
        consequence="Costs nothing while no client requests it.",
    )
    listen: Address | None = setting(
        "http.listen",
        HostPort(),
        None,
        default_text="the host that `listen` binds to, port 9293",
        example="127.0.0.1:9293",
        meaning="The address and port that HTTP binds to.",
        consequence="With port 0 the operating system chooses a free port; also by default, when `listen` has port 0 or 9293 is in "
        "use. TLS and client certificates are those of `listen`. With authorization, `/metrics` needs the permission to call "
        "`FetchMetadata` on `*`.",
        advice="Metrics contain the names of streams, cursors and groups: bind to a trusted network.",
    )

    def bind(self, listen: Address) -> Address:
        """Return the address that HTTP binds to, if the gRPC server binds to `listen`."""
        if self.listen is not None:
            return self.listen
        return Address(listen.host, HTTP_PORT_DEFAULT if listen.port else 0)
