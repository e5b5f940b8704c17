"""The Arrow Flight server, which serves streams as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bascule.config.values.address import PORT_DEFAULT, Address
from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, HostPort

FLIGHT_PORT_DEFAULT: Final = PORT_DEFAULT + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Arrow Flight"""

    enabled: bool | None = setting(
        "flight.enabled",
        Boolean(),
        None,
        default_text="true when pyarrow is installed",
        example="true",
        meaning="Serve streams as Arrow tables to Spark, DuckDB, Polars, pandas and other clients of Arrow Flight.",
        consequence="With `true` the server does not start without pyarrow; without the key it starts and logs that. "
        "Needs about 50 MB of memory.",
    )
    listen: Address | None = setting(
        "flight.listen",
        HostPort(),
        None,
        default_text="the host that `listen` binds to, port 9294",
        example="127.0.0.1:9294",
        meaning="The address and port that Arrow Flight binds to.",
        consequence="The server advertises this port with the host of `host` or `listen`. With port 0 the operating system chooses a "
        "free port; also by default, when `listen` has port 0 or 9294 is in use. TLS and authorization are those of `listen`.",
    )

    local: bool = setting(
        "flight.local",
        Boolean(),
        True,
        meaning="Let readers on this machine read log files directly, through file descriptors that the server passes to them.",
        consequence="Such a read needs a third of the CPU of a read through the port. Linux only, without TLS, and for streams "
        "without compression and encryption; all other readers get record batches. A deleted file keeps its disk space until the "
        "reader closes it.",
    )

    def bind(self, listen: Address) -> Address:
        """Return the address that Arrow Flight binds to, if the gRPC server binds to `listen`."""
        if self.listen is not None:
            return self.listen
        return Address(listen.host, FLIGHT_PORT_DEFAULT if listen.port else 0)
