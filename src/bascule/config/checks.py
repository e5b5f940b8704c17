"""Checks over several keys. The range of a single key is part of its declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from bascule import limits
from bascule.config.sections.security import PolicySource
from bascule.config.sections.server import ServerConfig
from bascule.config.unsafe import unsafe_settings
from bascule.config.values.duration import format_duration
from bascule.errors import InvalidConfig
from bascule.net.sockets import is_loopback

Problem = tuple[tuple[str, ...], str, str]
"""The keys involved, the problem, and the hint."""


def check(config: ServerConfig, describe: Callable[[str], str]) -> None:
    """Raise InvalidConfig for the first violated rule. `describe` returns the value of a key and its source."""
    for rule in _RULES:
        for names, problem, hint in rule(config):
            where = ", ".join(f"`{name}` {describe(name)}" for name in names)
            raise InvalidConfig(f"{problem} ({where})", hint=hint)


def _certificates(config: ServerConfig) -> Iterator[Problem]:
    for name, cert, key in (
        ("tls", config.tls.cert, config.tls.key),
        ("nats.tls", config.nats.tls_cert, config.nats.tls_key),
    ):
        if (cert is None) != (key is None):
            present, absent = ("cert", "key") if key is None else ("key", "cert")
            yield (
                (f"{name}.{present}",),
                f"`{name}.{absent}` is missing",
                f"set both `{name}.cert` and `{name}.key`, or none",
            )


def _client_certificates(config: ServerConfig) -> Iterator[Problem]:
    tls = config.tls
    if tls.client_auth_enabled and not tls.is_on:
        yield ("tls.client.auth.enabled",), "Client certificates need TLS", "set `tls.cert` and `tls.key`"
    if tls.client_auth_optional and not (tls.client_auth_enabled and config.has_tokens):
        yield (
            ("tls.client.auth.optional",),
            "Optional client certificates need client certificates and tokens",
            "set `tls.client.auth.enabled: true`, and `security.tokens.file` or `security.jwt.keys`",
        )
    if tls.client_authz_enabled and not tls.client_auth_enabled and not config.has_tokens:
        yield (
            ("tls.client.authz.enabled",),
            "Authorization needs client certificates or tokens",
            "set `tls.client.auth.enabled: true`, `security.tokens.file` or `security.jwt.keys`",
        )


def _policies(config: ServerConfig) -> Iterator[Problem]:
    tls, security = config.tls, config.security
    if security.policies_source is PolicySource.FILE:
        if security.policies_admins:
            yield (
                ("security.policies.admins",),
                "Administrators are named in the configuration only if the cluster stores the policy",
                "set `security.policies.source: cluster`, or write a line `p, <user>, *, *` into `tls.client.authz.policy`",
            )
        if tls.client_authz_enabled and tls.client_authz_policy is None:
            yield (
                ("tls.client.authz.enabled",),
                "Authorization needs a policy",
                "set `tls.client.authz.policy`, or `security.policies.source: cluster`",
            )
        return
    source = "security.policies.source"
    if not tls.client_authz_enabled:
        yield (source,), "A policy without authorization has no effect", "set `tls.client.authz.enabled: true`"
    for name, file in (
        ("tls.client.authz.policy", tls.client_authz_policy),
        ("tls.client.authz.model", tls.client_authz_model),
    ):
        if file is not None:
            yield (
                (source, name),
                "The policy comes from the cluster and from a file",
                f"remove `{name}`; `bascule acl grant --file` copies a policy into the cluster",
            )
    if not security.policies_admins:
        yield (
            (source,),
            "No user could grant the first rights",
            "set `security.policies.admins` to the user that administers the cluster",
        )


def _tokens(config: ServerConfig) -> Iterator[Problem]:
    jwt, source = config.jwt, "security.tokens.file" if config.security.tokens_file else "security.jwt.keys"
    for name, value in (("issuer", jwt.issuer), ("audience", jwt.audience)):
        if jwt.keys is not None and value is None:
            yield (
                ("security.jwt.keys",),
                f"`security.jwt.{name}` is missing",
                f"set `security.jwt.{name}`: without it a token for another service would be accepted",
            )
    if not config.has_tokens or config.tls.is_on:
        return
    if not config.security.tokens_plaintext:
        yield (
            (source,),
            "Tokens need TLS: anyone on the path could read them",
            "set `tls.cert` and `tls.key`; for tests on loopback addresses `security.tokens.plaintext: true`",
        )
    outside = [str(address) for address in config.binds if not is_loopback(address.host)]
    if outside:
        yield (
            ("security.tokens.plaintext",),
            f"Tokens without TLS are for loopback addresses only, and the server binds to {', '.join(outside)}",
            "set `tls.cert` and `tls.key`, or bind to 127.0.0.1",
        )


def _unsafe(config: ServerConfig) -> Iterator[Problem]:
    if config.security.insecure:
        return
    for one in unsafe_settings(config):
        if one.name != "plaintext_tokens":  # that one has a setting of its own
            hint = (
                f"{one.next_step}. If every machine of the network is trusted, add this line to the configuration: "
                "`security.insecure: true` (or set BASCULE_SECURITY_INSECURE=true)"
            )
            names = ("host",) if config.listener.listen is None and config.listener.host is not None else ("listen",)
            yield (names, one.problem[0].upper() + one.problem[1:], hint)


def _nats_login(config: ServerConfig) -> Iterator[Problem]:
    if config.nats.password is not None and config.nats.user is None:
        yield ("nats.password",), "`nats.password` is set without `nats.user`", "set `nats.user`"
    nats = config.nats
    ways = (
        ("nats.user", nats.user),
        ("nats.token", nats.token),
        ("nats.nkey.seed", nats.nkey_seed),
        ("nats.creds", nats.creds),
    )
    given = tuple(name for name, value in ways if value is not None)
    if len(given) > 1:
        yield (
            given,
            "More than one login for NATS is set",
            f"keep one of {', '.join(f'`{one}`' for one in given)}",
        )


def _cluster_secret(config: ServerConfig) -> Iterator[Problem]:
    secret = config.cluster.secret
    if secret.secret is not None and secret.secret_file is not None:
        yield (
            ("cluster.secret", "cluster.secret.file"),
            "The cluster secret is set twice",
            "keep `cluster.secret` or `cluster.secret.file`",
        )


def _audit_stream(config: ServerConfig) -> Iterator[Problem]:
    cluster, nats = config.cluster, config.nats
    if not cluster.audit.stream_enabled:
        return
    has_secret = cluster.secret.secret is not None or cluster.secret.secret_file is not None
    if not has_secret and not (nats.runs_embedded and nats.embedded_config is None):
        yield (
            ("security.audit.stream.enabled",),
            "The audit stream needs a cluster secret, which signs its records",
            "set `cluster.secret` or `cluster.secret.file` on all servers",
        )
    if cluster.replication.replication_max_bytes < limits.AUDIT_RECORD_BYTES_MAX:
        yield (
            ("security.audit.stream.enabled", "clustering.replication.max.bytes"),
            "Audit records can be larger than messages",
            f"set `clustering.replication.max.bytes` to at least {limits.AUDIT_RECORD_BYTES_MAX}",
        )


def _nats_schemes(config: ServerConfig) -> Iterator[Problem]:
    if any(url.startswith(("ws://", "wss://")) for url in config.nats.servers):
        yield ("nats.servers",), "NATS over WebSockets is not supported", "use `nats://` or `tls://`"


def _idle_wait(config: ServerConfig) -> Iterator[Problem]:
    replication = config.cluster.replication
    if replication.replica_max_idle_wait_ns >= replication.replica_max_lag_time_ns:
        longest = format_duration(replication.replica_max_lag_time_ns)
        yield (
            ("clustering.replica.max.idle.wait", "clustering.replica.max.lag.time"),
            "An idle follower would count as lagging",
            f"set `clustering.replica.max.idle.wait` below {longest}, or raise `clustering.replica.max.lag.time`",
        )


_RULES: Final[tuple[Callable[[ServerConfig], Iterator[Problem]], ...]] = (
    _certificates,
    _client_certificates,
    _policies,
    _tokens,
    _unsafe,
    _nats_login,
    _cluster_secret,
    _audit_stream,
    _nats_schemes,
    _idle_wait,
)
