"""The address of the gRPC server, TLS, and the authentication and authorization of clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bascule import limits
from bascule.config.values.address import PORT_DEFAULT, PORT_MAX, Address, advertise_address, bind_address
from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, FilePath, Host, HostPort, Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Address"""

    listen: Address | None = setting(
        "listen",
        HostPort(),
        None,
        default_text="127.0.0.1:9292",
        example="127.0.0.1:9292",
        meaning="The address and port that the gRPC server binds to.",
        consequence="The default is reachable from this machine only, and so is a port without a host. `:9292` and `0.0.0.0:9292` bind "
        "all interfaces; the server then advertises the machine's name to clients.",
        advice="Set `tls.cert` and `tls.key` before you bind to a network.",
    )
    host: str | None = setting(
        "host",
        Host(may_be_wildcard=True, is_advertised=True),
        None,
        default_text="localhost",
        example="broker-1.example.com",
        meaning="The host that the server advertises to clients.",
        consequence="Without `listen` the server also binds to it. With `0.0.0.0`, as in Liftbridge's files, it binds all interfaces, "
        "warns, and advertises the machine's name.",
        advice="Set it when clients reach the server under another name, for example through NAT or in a container.",
    )
    port: int | None = setting(
        "port",
        Integer(maximum=PORT_MAX),
        None,
        default_text=str(PORT_DEFAULT),
        example=str(PORT_DEFAULT),
        flags=("--port", "-p"),
        meaning="The port that the server advertises to clients, and binds to when `listen` is not set.",
        consequence="With 0 the operating system chooses a free port, which the server advertises. If `port` is not set and `host` and "
        "`listen` are, the server advertises the port of `listen`.",
    )
    connections_max: int = setting(
        "connections.max",
        Integer(minimum=1, maximum=limits.HANDLES_MAX),
        limits.GRPC_CONNECTIONS_MAX,
        meaning="The maximum number of connections to the gRPC port.",
        consequence="For one more, the server closes a connection that has been without calls for a minute, or refuses the new one. "
        f"The server accepts fewer if the process may open fewer files: {limits.HANDLES_RESERVED} are kept for logs.",
        advice="Raise the hard limit of open files (`ulimit -Hn`) together with it.",
    )
    connections_per_address_max: int = setting(
        "connections.per.address.max",
        Integer(minimum=1, maximum=limits.HANDLES_MAX),
        limits.GRPC_CONNECTIONS_PER_ADDRESS_MAX,
        meaning="The maximum number of connections to the gRPC port from one address.",
        consequence="One client cannot use up `connections.max`.",
        advice="Set it to `connections.max` when all clients come through one proxy.",
    )

    def bind(self) -> Address:
        """Return the address that the gRPC server binds to."""
        return bind_address(self.listen, self.host, self.port)

    def advertise(self, *, bound_port: int, machine_name: str) -> Address:
        """Return the address to advertise to clients. `bound_port` replaces a port of 0."""
        return advertise_address(self.listen, self.host, self.port, bound_port=bound_port, machine_name=machine_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS and client certificates"""

    cert: Path | None = setting(
        "tls.cert",
        FilePath(),
        None,
        example="/etc/bascule/server.crt",
        flags=("--tls-cert",),
        meaning="The server's certificate chain, PEM.",
        consequence="Together with `tls.key` it enables TLS on the gRPC port; both keys must be set.",
    )
    key: Path | None = setting(
        "tls.key",
        FilePath(),
        None,
        example="/etc/bascule/server.key",
        flags=("--tls-key",),
        meaning="The private key of `tls.cert`, PEM.",
        advice="Make the file readable by the server's user only.",
    )
    client_auth_enabled: bool = setting(
        "tls.client.auth.enabled",
        Boolean(),
        False,
        meaning="Require a client certificate and verify it.",
        consequence="Clients without one cannot connect. Needs `tls.cert` and `tls.key`.",
    )
    client_auth_optional: bool = setting(
        "tls.client.auth.optional",
        Boolean(),
        False,
        meaning="Accept clients without a certificate when they send a token with each call.",
        consequence="Needs `tls.client.auth.enabled` and tokens. A certificate that is presented is verified all the same.",
    )
    client_auth_ca: Path | None = setting(
        "tls.client.auth.ca",
        FilePath(),
        None,
        default_text="the system's roots",
        example="/etc/bascule/clients-ca.crt",
        meaning="The certificate authority of client certificates, PEM.",
        advice="Set it: the system's roots accept a certificate from any public authority.",
    )
    client_crl: Path | None = setting(
        "tls.client.crl",
        FilePath(),
        None,
        example="/etc/bascule/clients.crl",
        meaning="Revocation lists of the authorities of client certificates, PEM.",
        consequence="With `tls.client.auth.enabled`, a client whose certificate is listed cannot connect. On SIGHUP the server reads "
        "the file again and ends connections with listed certificates. A list that has expired, or is missing for an authority, keeps "
        "its clients out.",
    )
    client_authz_enabled: bool = setting(
        "tls.client.authz.enabled",
        Boolean(),
        False,
        meaning="Allow a client only the actions that the policy grants to the user of its token, or to the common name of its "
        "certificate.",
        consequence="An action that no policy line grants is denied. Needs `tls.client.auth.enabled` or tokens, and a policy.",
    )
    client_authz_model: Path | None = setting(
        "tls.client.authz.model",
        FilePath(),
        None,
        example="/etc/bascule/model.conf",
        default_text="the built-in model",
        meaning="The casbin model file.",
        consequence="The built-in model has typed resources, roles, prefixes and wildcards.",
    )
    client_authz_policy: Path | None = setting(
        "tls.client.authz.policy",
        FilePath(),
        None,
        example="/etc/bascule/policy.csv",
        meaning="The casbin policy file: lines of `p, <user>, <stream>, <action>`.",
        advice="Each server reads its own file: keep the files of all servers equal.",
    )

    @property
    def is_on(self) -> bool:
        return self.cert is not None and self.key is not None
