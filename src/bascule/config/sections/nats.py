"""The connection to NATS, and the embedded nats-server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, FilePath, Host, Integer, NatsServers, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Nats:
    """NATS"""

    servers: tuple[str, ...] = setting(
        "nats.servers",
        NatsServers(),
        ("nats://127.0.0.1:4222",),
        flags=("--nats-servers", "-n"),
        meaning="The NATS servers to connect to, as a list or as one comma-separated text.",
        consequence="The broker uses the first server that answers, and another one when that server fails. An address without a "
        "scheme gets `nats://`; `tls://` requires encryption. Ignored with `nats.embedded`.",
        advice="Name several servers of the NATS cluster; the broker learns the others from them.",
    )
    user: str | None = setting(
        "nats.user",
        Text(),
        None,
        example="bascule",
        meaning="The user to log in to NATS with.",
        consequence="`bascule` without a password is the login to another broker's embedded nats-server, with the same "
        "`cluster.secret`.",
    )
    password: str | None = setting(
        "nats.password",
        Text(),
        None,
        example="secret",
        is_secret=True,
        meaning="The password of `nats.user`.",
        advice="Prefer the environment variable to a file that other users can read. The value is never shown or logged.",
    )
    token: str | None = setting(
        "nats.token",
        Text(),
        None,
        example="secret",
        is_secret=True,
        meaning="The token to log in to NATS with, instead of a user and a password.",
        advice="Prefer the environment variable to a file that other users can read. The value is never shown or logged.",
    )
    nkey_seed: Path | None = setting(
        "nats.nkey.seed",
        FilePath(),
        None,
        example="/etc/bascule/nats.nk",
        meaning="A file with the seed of an nkey, a line that begins with `SU`, to log in to NATS with.",
        consequence="The seed never leaves this machine: the broker signs a text from NATS. It reads the file for each connection.",
        advice="Make the file readable by the broker's user only.",
    )
    creds: Path | None = setting(
        "nats.creds",
        FilePath(),
        None,
        example="/etc/bascule/nats.creds",
        meaning="A credentials file, as `nsc` writes it, to log in to NATS with: a user's JWT and seed.",
        consequence="The broker reads the file for each connection, so it can be replaced before the JWT expires.",
        advice="Use it with NATS servers that have operators and accounts. Make the file readable by the broker's user only.",
    )
    tls_cert: Path | None = setting(
        "nats.tls.cert",
        FilePath(),
        None,
        example="/etc/bascule/nats-client.crt",
        meaning="The broker's client certificate for NATS, PEM.",
        consequence="Needs `nats.tls.key`; the connection then uses TLS 1.2 or newer.",
    )
    tls_key: Path | None = setting(
        "nats.tls.key",
        FilePath(),
        None,
        example="/etc/bascule/nats-client.key",
        meaning="The private key of `nats.tls.cert`, PEM.",
    )
    tls_ca: Path | None = setting(
        "nats.tls.ca",
        FilePath(),
        None,
        default_text="the system's roots",
        example="/etc/bascule/nats-ca.crt",
        meaning="The certificate authority of the NATS servers' certificates, PEM.",
    )
    embedded: bool = setting(
        "nats.embedded",
        Boolean(),
        False,
        flags=("--embedded-nats", "-e"),
        meaning="Start a nats-server as a child process of this broker and use it.",
        consequence="No other NATS server is needed. The child starts and stops with the broker. Its clients need no login for the "
        "subjects of streams; only brokers with the same `cluster.secret` can use `<namespace>.>`.",
        advice="Use it on a single machine and for tests; run separate NATS servers for a cluster.",
    )
    embedded_host: str = setting(
        "nats.embedded.host",
        Host(may_be_wildcard=True),
        "127.0.0.1",
        meaning="The host that the embedded nats-server binds to.",
        consequence="The default allows clients of this machine only. Ignored with `nats.embedded.config`.",
        advice="Every client that can reach it may publish and subscribe: before you bind it to a network, give it a configuration "
        "with authentication.",
    )
    embedded_port: int = setting(
        "nats.embedded.port",
        Integer(maximum=65535),
        4222,
        meaning="The port of the embedded nats-server; with 0 the operating system chooses a free one.",
        consequence="The chosen port stays the same while the broker runs. Ignored with `nats.embedded.config`.",
    )
    embedded_config: Path | None = setting(
        "nats.embedded.config",
        FilePath(),
        None,
        example="/etc/bascule/nats-server.conf",
        flags=("--embedded-nats-config", "--nc"),
        meaning="The configuration file of the embedded nats-server.",
        consequence="Implies `nats.embedded`.",
    )

    @property
    def has_no_login(self) -> bool:
        return self.user is None and self.token is None and self.nkey_seed is None and self.creds is None

    @property
    def runs_embedded(self) -> bool:
        return self.embedded or self.embedded_config is not None
