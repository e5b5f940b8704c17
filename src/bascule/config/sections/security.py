"""Tokens of clients: static ones from a file, and JSON Web Tokens of an OpenID provider; the source of policies; and the permission to
go without."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, Choice, Duration, FilePath, Text, Users

SECOND_NS = 1_000_000_000


class PolicySource(StrEnum):
    """Where the lines of the policy come from."""

    FILE = "file"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    """JSON Web Tokens"""

    keys: str | None = setting(
        "security.jwt.keys",
        Text(),
        None,
        example="https://id.example.com/keys",
        meaning="The keys that sign JSON Web Tokens: a JSON Web Key Set, as a file or an `https://` URL.",
        consequence="Enables JWTs; each call then needs a token or a client certificate. Needs `security.jwt.issuer` and "
        "`security.jwt.audience`. RS, PS and ES algorithms and EdDSA are accepted, symmetric ones never.",
    )
    ca: Path | None = setting(
        "security.jwt.ca",
        FilePath(),
        None,
        default_text="the system's roots",
        example="/etc/bascule/id-ca.crt",
        meaning="The certificate authority of the URL in `security.jwt.keys`, PEM.",
    )
    issuer: str | None = setting(
        "security.jwt.issuer",
        Text(),
        None,
        example="https://id.example.com",
        meaning="The claim `iss` that a JWT must have.",
    )
    audience: str | None = setting(
        "security.jwt.audience",
        Text(),
        None,
        example="bascule",
        meaning="The claim `aud` that a JWT must have, alone or among others.",
        advice="Use a name of this cluster's own: a token for another service is then refused.",
    )
    leeway_ns: int = setting(
        "security.jwt.leeway",
        Duration(),
        30 * SECOND_NS,
        meaning="The clock difference that is tolerated between the issuer and the server.",
        consequence="A JWT is accepted until this long after its expiry.",
    )
    refresh_ns: int = setting(
        "security.jwt.refresh",
        Duration(minimum_ns=30 * SECOND_NS),
        600 * SECOND_NS,
        meaning="The interval at which the keys are read again.",
        consequence="A token that is signed with a withdrawn key is accepted for at most twice this time. An unknown key id causes a "
        "read at once, but not more often than every 30 s.",
    )
    user_claim: str = setting(
        "security.jwt.user.claim",
        Text(),
        "sub",
        meaning="The claim that names the user.",
    )
    user_prefix: str | None = setting(
        "security.jwt.user.prefix",
        Text(),
        None,
        example="oidc:",
        meaning="Text that is put before the user's name.",
        advice="Set it when users of the provider must not have the names of static tokens or certificates.",
    )
    roles_claim: str | None = setting(
        "security.jwt.roles.claim",
        Text(),
        None,
        example="groups",
        meaning="The claim with the roles of the user: a list of texts, or one text with spaces.",
        consequence="Policies name these roles `role:<name>`. Without it JWTs grant no roles.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Security"""

    insecure: bool = setting(
        "security.insecure",
        Boolean(),
        False,
        meaning="Allow the server to listen beyond loopback addresses without TLS or without authentication.",
        consequence="Without it such a server does not start. With it the server warns at start, and in the metric "
        "`bascule_unsafe_setting`.",
        advice="For networks where every machine is trusted, and for tests.",
    )
    policies_source: PolicySource = setting(
        "security.policies.source",
        Choice(PolicySource),
        PolicySource.FILE,
        meaning="Where the policy comes from: `file` is `tls.client.authz.policy` of each server, `cluster` the replicated metadata.",
        consequence="With `cluster`, `bascule acl grant` and `bascule acl revoke` change the policy of all servers at once. Needs "
        "`tls.client.authz.enabled` and `security.policies.admins`; the model is the built-in one.",
        advice="Use the same source on all servers.",
    )
    policies_admins: tuple[str, ...] = setting(
        "security.policies.admins",
        Users(),
        (),
        default_text="none",
        example="alice,role:platform",
        meaning="Users, or roles of tokens as `role:<name>`, that may do everything when the cluster stores the policy.",
        consequence="No call can take their rights away. They are the first that can grant rights to others.",
        advice="Name one or two operators, the same on all servers.",
    )
    audit_file: Path | None = setting(
        "security.audit.file",
        FilePath(),
        None,
        example="/var/log/bascule/audit.jsonl",
        meaning="The file of the audit log: changes of streams and cluster, refused calls, starts, stops and reloads, as JSON lines.",
        consequence="Enables the audit log. Each record has the hash of the one before; `bascule audit verify` checks them. The server "
        "does not start if it cannot open the file. SIGHUP makes it open the path again, after a rotation.",
        advice="Copy the file to another machine continuously: an intruder can delete it, but not change it unnoticed.",
    )
    tokens_file: Path | None = setting(
        "security.tokens.file",
        FilePath(),
        None,
        example="/etc/bascule/tokens",
        meaning="The file with the hashes of static tokens; `bascule token create` writes it.",
        consequence="Enables static tokens; each call then needs a token or a client certificate. SIGHUP makes the server read the "
        "file again: a removed token is refused from then on.",
        advice="Each server reads its own file: keep the files of all servers equal.",
    )
    tokens_plaintext: bool = setting(
        "security.tokens.plaintext",
        Boolean(),
        False,
        meaning="Accept tokens without TLS while all ports are bound to loopback addresses.",
        consequence="Each process of this machine that can take over the port can read the tokens.",
        advice="For tests on one machine. Set `tls.cert` and `tls.key` otherwise.",
    )
