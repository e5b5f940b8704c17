"""Authorization by a policy of lines `p, <user>, <resource>, <action>`.

A client is identified by the user of its token, or by the common name of its certificate; the roles of a token are subjects
`role:<name>`. Resources are stream names, group ids, NATS subjects and `*` for metadata; the built-in model adds types to them. Actions
have the names of RPCs. Anything that no line grants is denied. Lines come from a file, which is read at the start and on `reload`, or
from the metadata of the cluster, see `use`. When a file cannot be used on reload, the previous policy stays in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Protocol, TypeAlias

from bascule import limits
from bascule.config.sections.listener import Tls
from bascule.config.sections.security import PolicySource, Security
from bascule.errors import InvalidConfig, PermissionDenied, Unavailable
from bascule.security.policy.builtin import BuiltinPolicy
from bascule.security.policy.casbin_policy import CasbinPolicy
from bascule.security.policy.lines import MalformedLine, PolicyLine, administrators, parse_file
from bascule.security.policy.resources import ROLE_PREFIX, SUBJECT_PREFIX, rights_to, written_rights_to

_logger = logging.getLogger(__name__)


class CertifiedPeer(Protocol):
    """The client of a connection, with the common name of its certificate."""

    @property
    def common_name(self) -> str | None: ...


class Policy(Protocol):
    """Decides about names of users and roles. Threads ask it concurrently."""

    @property
    def names_subjects(self) -> bool:
        """Whether the policy is about the subjects of streams, too."""

    @property
    def names_plain_subjects(self) -> bool:
        """Whether a line of PublishToSubject may name a subject without `subject:`."""

    def allows(self, name: str, resource: str, action: str) -> bool: ...

    def allows_subject(self, name: str, subject: str, action: str) -> bool: ...

    def line(self, name: str, resource: str, action: str) -> PolicyLine | None: ...

    def subject_line(self, name: str, subject: str, action: str) -> PolicyLine | None: ...

    def roles_of(self, name: str) -> list[str]: ...


OnRefused: TypeAlias = Callable[[CertifiedPeer | None, str, str], None]
"""Gets the client, the resource and the action of a refused call."""


@dataclass(frozen=True, slots=True)
class _InForce:
    """A policy and its cached decisions. They change together: a thread that decides by the old policy keeps that in the old cache."""

    policy: Policy
    decided: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    subjects_decided: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """Apart from the others: a stream may have the name `subject:orders`."""

    def allows(self, name: str, resource: str, action: str) -> bool:
        asked = (name, resource, action)
        found = self.decided.get(asked)
        return _remember(self.decided, asked, self.policy.allows(*asked)) if found is None else found

    def allows_subject(self, name: str, subject: str, action: str) -> bool:
        asked = (name, subject, action)
        found = self.subjects_decided.get(asked)
        return _remember(self.subjects_decided, asked, self.policy.allows_subject(*asked)) if found is None else found


def _remember(decided: dict[tuple[str, str, str], bool], asked: tuple[str, str, str], decision: bool) -> bool:
    if len(decided) >= limits.AUTHORIZATIONS_REMEMBERED_MAX:
        decided.clear()
    decided[asked] = decision
    return decision


class Authorizer:
    def __init__(
        self,
        policy: Policy | None,
        is_current: Callable[[CertifiedPeer | None], bool] | None = None,
        on_refused: OnRefused | None = None,
        *,
        read_again: Callable[[], Policy] | None = None,
        is_complete: bool = True,
    ) -> None:
        """Without a policy every call is allowed: see `disabled`.

        `is_current` returns whether a client's token is still valid; None when there are no tokens. `on_refused` is called, on any
        thread, for each call that is refused. `read_again` returns the policy of the files, and raises InvalidConfig. If the policy is
        not complete, calls that it does not allow are refused with Unavailable until `use` has replaced it.
        """
        self._is_current = is_current
        self._on_refused = on_refused
        self._read_again = read_again
        self.is_complete = is_complete
        """Whether the policy is known, and not only its administrators."""
        self._in_force = None if policy is None else _InForce(policy)
        self.generation = 0
        """Increases with every new policy; callers may cache decisions of the same generation."""

    @classmethod
    def disabled(cls) -> Authorizer:
        """Allows every call of every client."""
        return cls(None)

    @classmethod
    def of_files(
        cls,
        model: Path | None,
        policy: Path,
        is_current: Callable[[CertifiedPeer | None], bool] | None = None,
        on_refused: OnRefused | None = None,
    ) -> Authorizer:
        """Raises InvalidConfig when a file cannot be used."""

        def read() -> Policy:
            return read_policy(model, policy)

        return cls(read(), is_current, on_refused, read_again=read)

    @classmethod
    def from_config(
        cls,
        tls: Tls,
        security: Security,
        is_current: Callable[[CertifiedPeer | None], bool] | None = None,
        on_refused: OnRefused | None = None,
    ) -> Authorizer:
        if not tls.client_authz_enabled:
            return cls(None, is_current, on_refused)
        if security.policies_source is PolicySource.CLUSTER:
            first = BuiltinPolicy(administrators(security.policies_admins))
            return cls(first, is_current, on_refused, is_complete=False)
        assert tls.client_authz_policy is not None, "the configuration was checked"
        return cls.of_files(tls.client_authz_model, tls.client_authz_policy, is_current, on_refused)

    @property
    def is_enabled(self) -> bool:
        """Whether there are calls that are not allowed."""
        return self._in_force is not None or self._is_current is not None

    def credentials_changed(self) -> None:
        """Tokens were read again, or may have expired: calls in progress have to be judged again."""
        self.generation += 1

    def use(self, policy: Policy) -> None:
        """Decide by this policy, which is complete, from now on."""
        self._in_force = _InForce(policy)
        self.is_complete = True
        self.generation += 1

    def allows(self, peer: CertifiedPeer | None, resource: str, action: str) -> bool:
        rights = rights_to(resource, action)
        if not rights:
            return False  # without a policy, too
        if self._is_current is not None and not self._is_current(peer):
            return False
        in_force = self._in_force
        return in_force is None or any(in_force.allows(name, *right) for name in names_of(peer) for right in rights)

    def require(self, peer: CertifiedPeer | None, resource: str, action: str) -> None:
        """Raises PermissionDenied, with the text that clients know; Unavailable while the policy is not known."""
        if not self.allows(peer, resource, action):
            raise self.refused(peer, resource, action)

    def refused(self, peer: CertifiedPeer | None, resource: str, action: str) -> PermissionDenied | Unavailable:
        """Report that a call is refused to the audit log. Returns the error for the client."""
        if not self.is_complete:
            return Unavailable(
                "this server has not read the policies of the cluster yet", hint="retry, or use another server"
            )
        return PermissionDenied(self.refusal(peer, resource, action))

    def refusal(self, peer: CertifiedPeer | None, resource: str, action: str) -> str:
        """Report that a call is refused to the audit log. Returns the text of the refusal, which clients know."""
        if self._on_refused is not None:
            self._on_refused(peer, resource, action)
        return f"The client is not authorized to call {action} on resource {resource}"

    # ── subjects ─────────────────────────────────────────────────────────────────────────────────

    @property
    def names_subjects(self) -> bool:
        """Whether the policy is about the subjects of streams, too."""
        return self._in_force is not None and self._in_force.policy.names_subjects

    def allows_subject(self, peer: CertifiedPeer | None, subject: str, action: str) -> bool:
        """Whether a line on subjects, or on everything, grants the action."""
        in_force = self._in_force
        if in_force is None:
            return True
        if any(in_force.allows_subject(name, subject, action) for name in names_of(peer)):
            return True
        is_plain = action == "PublishToSubject" and in_force.policy.names_plain_subjects
        return is_plain and self.allows(peer, subject, action)

    def require_subject(self, peer: CertifiedPeer | None, subject: str, action: str) -> None:
        """Raises PermissionDenied, or Unavailable while the policy is not known."""
        if not self.allows_subject(peer, subject, action):
            raise self.refused(peer, SUBJECT_PREFIX + subject, action)

    def reload(self) -> bool:
        """Read the files again. When they cannot be used, logs an error, keeps the present policy and returns False."""
        if self._read_again is None:
            _logger.info("there is no policy file to read again")
            return True
        try:
            self.use(self._read_again())
        except InvalidConfig as error:
            _logger.error("the authorization policy was not changed: %s (%s)", error.message, error.hint)
            return False
        _logger.info("the authorization policy was read again")
        return True


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a user may, or may not, do something."""

    is_allowed: bool
    line: str | None
    """The line of the policy that allows it."""
    names: tuple[str, ...]
    """The user, and all its roles: those of its token and those of the policy."""
    rights: tuple[tuple[str, str], ...]
    """The resources and actions one of which a line has to allow. Empty: no policy can allow it."""


def explain(policy: Policy, user: str, roles: tuple[str, ...], action: str, resource: str) -> Explanation:
    """Explain a decision. `resource` is as in the policy: with its type in the built-in model, `subject:<subject>` for a subject."""
    names = [user, *(ROLE_PREFIX + role for role in roles)]
    known = tuple(dict.fromkeys([*names, *(role for name in names for role in policy.roles_of(name))]))
    rights = written_rights_to(resource, action)
    for name, (wanted, right) in product(names, rights):
        if wanted.startswith(SUBJECT_PREFIX):
            found = policy.subject_line(name, wanted.removeprefix(SUBJECT_PREFIX), right)
        else:
            found = policy.line(name, wanted, right)
        if found is not None:
            return Explanation(True, found.text, known, rights)
    return Explanation(False, None, known, rights)


def names_of(peer: CertifiedPeer | None) -> tuple[str, ...]:
    """Return the names that a policy knows a client by: its own, and those of the roles of its token. None without a name."""
    if peer is None or not peer.common_name or peer.common_name.startswith(ROLE_PREFIX):
        return ()
    roles: tuple[str, ...] = getattr(peer, "roles", ())
    return (peer.common_name, *(ROLE_PREFIX + role for role in roles))


def read_policy(model: Path | None, policy: Path) -> Policy:
    """Return the policy of a file, for the model or for the built-in one. Raises InvalidConfig when a file cannot be used."""
    try:
        text = policy.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the policy {policy} cannot be read: {error}") from None
    try:
        return BuiltinPolicy(parse_file(text)) if model is None else CasbinPolicy(model, policy, text)
    except MalformedLine as error:
        raise InvalidConfig(f"the policy {policy}: {error.problem}", hint=error.hint) from None
