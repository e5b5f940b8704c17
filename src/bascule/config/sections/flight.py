"""Streams as Arrow tables: where they are served."""

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
        meaning="Serve streams as Arrow tables: to Spark, DuckDB, Polars, pandas and whoever else speaks Arrow Flight.",
        consequence="`true` where pyarrow cannot be imported is an error; without the key the server says so and goes on. Takes some "
        "50 MB of memory.",
    )
    listen: Address | None = setting(
        "flight.listen",
        HostPort(),
        None,
        default_text="the host that `listen` binds to, port 9294",
        example="127.0.0.1:9294",
        meaning="The address and port that Arrow Flight binds to.",
        consequence="Clients are told the host of `host` or `listen`, and this port. Port 0 lets the system choose a free one; so does "
        "the default where `listen` has port 0, or where 9294 is taken already. TLS and authorization are those of `listen`.",
    )

    local: bool = setting(
        "flight.local",
        Boolean(),
        True,
        meaning="Let readers on this machine read the log's files themselves, through handles that they get from the server.",
        consequence="They take a third of the CPU that record batches over the port take. Linux only, and not with TLS, nor for "
        "streams that are compressed or encrypted: those readers get record batches as all others do. Files that a reader has open "
        "keep their space until it closes them.",
    )

    def bind(self, listen: Address) -> Address:
        """Where Arrow Flight binds, when the gRPC server binds to `listen`."""
        if self.listen is not None:
            return self.listen
        return Address(listen.host, FLIGHT_PORT_DEFAULT if listen.port else 0)
