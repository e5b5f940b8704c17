"""The NATS servers this broker lives on."""

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
        meaning="The NATS servers to connect to, as a list or as one text with commas.",
        consequence="The first one that answers is used, the others take over when it goes away. An address without a scheme "
        "gets `nats://`; with `tls://` the connection must be encrypted. Ignored with `nats.embedded`.",
        advice="Name all servers of the NATS cluster. Those they know themselves are found anyway.",
    )
    user: str | None = setting("nats.user", Text(), None, example="bascule", meaning="The user to log in to NATS with.")
    password: str | None = setting(
        "nats.password",
        Text(),
        None,
        example="secret",
        is_secret=True,
        meaning="The password of `nats.user`.",
        advice="Prefer the environment variable to a file that others can read. It is never shown or logged.",
    )
    token: str | None = setting(
        "nats.token",
        Text(),
        None,
        example="secret",
        is_secret=True,
        meaning="The token to log in to NATS with, instead of a user and a password.",
        advice="Prefer the environment variable to a file that others can read. It is never shown or logged.",
    )
    nkey_seed: Path | None = setting(
        "nats.nkey.seed",
        FilePath(),
        None,
        example="/etc/bascule/nats.nk",
        meaning="A file with the seed of an nkey, a line that begins with `SU`, to log in to NATS with.",
        consequence="The seed never leaves this machine: NATS sends a text to sign. The file is read again for each connection.",
        advice="Let nobody but the broker read it.",
    )
    creds: Path | None = setting(
        "nats.creds",
        FilePath(),
        None,
        example="/etc/bascule/nats.creds",
        meaning="A credentials file, as `nsc` writes it, to log in to NATS with: a user's JWT and seed.",
        consequence="The file is read again for each connection, so it can be replaced before the JWT expires.",
        advice="Right for NATS servers with accounts and operators. Let nobody but the broker read it.",
    )
    tls_cert: Path | None = setting(
        "nats.tls.cert",
        FilePath(),
        None,
        example="/etc/bascule/nats-client.crt",
        meaning="The certificate this server shows to NATS, PEM.",
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
        meaning="The authority that the NATS servers' certificates must come from, PEM.",
    )
    embedded: bool = setting(
        "nats.embedded",
        Boolean(),
        False,
        flags=("--embedded-nats", "-e"),
        meaning="Run a nats-server of our own beside this broker and use it.",
        consequence="Nothing else has to be installed or started. It lives and dies with the broker.",
        advice="Right for one machine and for trying things out; a cluster wants NATS servers of its own.",
    )
    embedded_host: str = setting(
        "nats.embedded.host",
        Host(may_be_wildcard=True),
        "127.0.0.1",
        meaning="Where the embedded nats-server listens.",
        consequence="On the loopback nobody but this machine can publish. Ignored with `nats.embedded.config`.",
        advice="Anybody who reaches it may publish and subscribe: before you open it, give it a configuration with a login.",
    )
    embedded_port: int = setting(
        "nats.embedded.port",
        Integer(maximum=65535),
        4222,
        meaning="The port of the embedded nats-server; 0 picks a free one.",
        consequence="A free port stays the same while the broker runs. Ignored with `nats.embedded.config`.",
    )
    embedded_config: Path | None = setting(
        "nats.embedded.config",
        FilePath(),
        None,
        example="/etc/bascule/nats-server.conf",
        flags=("--embedded-nats-config", "--nc"),
        meaning="The configuration file of the embedded nats-server.",
        consequence="Turns `nats.embedded` on.",
    )

    @property
    def runs_embedded(self) -> bool:
        return self.embedded or self.embedded_config is not None
