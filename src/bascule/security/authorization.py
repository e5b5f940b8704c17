"""Authorization by a casbin model and a policy of lines `p, <common name>, <resource>, <action>`.

A client is identified by the user of its token, or by the common name of its certificate; the roles of a token are subjects
`role:<name>`. Resources are stream names, group ids, NATS subjects and `*` for metadata, or
the typed ones of `resources` when no model is given; actions have the names of RPCs. Anything
that no line grants is denied. See `subjects` for lines on subjects. The files are read at the start and on `reload`; when a file
cannot be used on reload, the previous policy stays in force.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from bascule import limits
from bascule.config.sections.listener import Tls
from bascule.errors import InvalidConfig, PermissionDenied
from bascule.security import resources
from bascule.security.identity import ROLE_PREFIX
from bascule.security.resources import rights_to, typed
from bascule.security.subjects import SUBJECT_PREFIX, SubjectGrants

_logger = logging.getLogger(__name__)

_HINT: Final = "lines are `p, <common name>, <resource>, <action>`; `#` begins a comment"


class CertifiedPeer(Protocol):
    """The client of a connection, with the common name of its certificate."""

    @property
    def common_name(self) -> str | None: ...


OnRefused: TypeAlias = Callable[[CertifiedPeer | None, str, str], None]
"""Gets the client, the resource and the action of a refused call."""


class Authorizer:
    def __init__(
        self,
        model: Path | None,
        policy: Path | None,
        is_current: Callable[[CertifiedPeer | None], bool] | None = None,
        on_refused: OnRefused | None = None,
    ) -> None:
        """Raises InvalidConfig when a file cannot be used. Without files every call is allowed: see `disabled`.

        `is_current` returns whether a client's token is still valid; None when there are no tokens. `on_refused` is called, on any
        thread, for each call that is refused.
        """
        self._is_current = is_current
        self._on_refused = on_refused
        self._model = model
        self._policy = policy
        self._enforcer: Any = None
        self._subjects: SubjectGrants | None = None
        self._is_typed = model is None
        """The built-in model: resources have types."""
        if policy is not None:
            self._enforcer, self._subjects = _load(model, policy)
        self._decided: dict[tuple[str, str, str], bool] = {}
        self.generation = 0
        """Increases with every new policy; callers may cache decisions of the same generation."""

    @classmethod
    def disabled(cls) -> Authorizer:
        """Allows every call of every client."""
        return cls(None, None)

    @classmethod
    def from_config(
        cls,
        tls: Tls,
        is_current: Callable[[CertifiedPeer | None], bool] | None = None,
        on_refused: OnRefused | None = None,
    ) -> Authorizer:
        if not tls.client_authz_enabled:
            return cls(None, None, is_current, on_refused)
        return cls(tls.client_authz_model, tls.client_authz_policy, is_current, on_refused)

    @property
    def is_enabled(self) -> bool:
        """Whether there are calls that are not allowed."""
        return self._enforcer is not None or self._is_current is not None

    def credentials_changed(self) -> None:
        """Tokens were read again, or may have expired: calls in progress have to be judged again."""
        self.generation += 1

    def allows(self, peer: CertifiedPeer | None, resource: str, action: str) -> bool:
        rights = rights_to(resource, action)
        if not rights:
            return False  # without a policy, too
        if self._is_current is not None and not self._is_current(peer):
            return False
        if self._enforcer is None:
            return True
        return any(self._is_granted(name, *right) for name in names_of(peer) for right in rights)

    def _is_granted(self, subject: str, resource: str, action: str) -> bool:
        assert self._enforcer is not None
        asked = (subject, typed(resource, action) if self._is_typed else resource, action)
        decided = self._decided.get(asked)
        if decided is None:
            decided = self._decide(asked, bool(self._enforcer.enforce(*asked)))
        return decided

    def _decide(self, asked: tuple[str, str, str], decided: bool) -> bool:
        if len(self._decided) >= limits.AUTHORIZATIONS_REMEMBERED_MAX:
            self._decided.clear()
        self._decided[asked] = decided
        return decided

    def require(self, peer: CertifiedPeer | None, resource: str, action: str) -> None:
        """Raises PermissionDenied, with the text that clients know."""
        if not self.allows(peer, resource, action):
            raise PermissionDenied(self.refusal(peer, resource, action))

    def refusal(self, peer: CertifiedPeer | None, resource: str, action: str) -> str:
        """Report that a call is refused to the audit log. Returns the text of the refusal, which clients know."""
        if self._on_refused is not None:
            self._on_refused(peer, resource, action)
        return f"The client is not authorized to call {action} on resource {resource}"

    # ── subjects ─────────────────────────────────────────────────────────────────────────────────

    @property
    def names_subjects(self) -> bool:
        """Whether the policy is about subjects, too: it has lines on them, or no model of its own. Another one was written for
        Liftbridge, which checks no subject of a stream."""
        return self._subjects is not None and (self._is_typed or not self._subjects.is_empty)

    def allows_subject(self, peer: CertifiedPeer | None, subject: str, action: str) -> bool:
        """Whether a line on subjects, or on everything, grants the action. A line of PublishToSubject may also name the subject as it
        is, as for Liftbridge."""
        if self._subjects is None:
            return True
        if any(self._is_granted_subject(name, subject, action) for name in names_of(peer)):
            return True
        return action == "PublishToSubject" and not self._is_typed and self.allows(peer, subject, action)

    def _is_granted_subject(self, name: str, subject: str, action: str) -> bool:
        assert self._subjects is not None
        asked = (name, SUBJECT_PREFIX + subject, action)
        decided = self._decided.get(asked)
        if decided is None:
            decided = self._decide(asked, self._subjects.allows(name, subject, action))
        return decided

    def require_subject(self, peer: CertifiedPeer | None, subject: str, action: str) -> None:
        """Raises PermissionDenied."""
        if not self.allows_subject(peer, subject, action):
            raise PermissionDenied(self.refusal(peer, SUBJECT_PREFIX + subject, action))

    def reload(self) -> bool:
        """Read the files again. When they cannot be used, logs an error, keeps the present policy and returns False."""
        if self._policy is None or self._enforcer is None:
            _logger.info("authorization is off: there is no policy to read again")
            return True
        try:
            self._enforcer, self._subjects = _load(self._model, self._policy)
        except InvalidConfig as error:
            _logger.error("the authorization policy was not changed: %s (%s)", error.message, error.hint)
            return False
        self._decided.clear()
        self.generation += 1
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


def explain(
    model: Path | None, policy: Path, user: str, roles: tuple[str, ...], action: str, resource: str
) -> Explanation:
    """Explain a decision. `resource` is as in the policy: with its type in the built-in model, `subject:<subject>` for a subject.

    Raises InvalidConfig when a file cannot be used.
    """
    enforcer, subjects = _load(model, policy)
    names = [user, *(ROLE_PREFIX + role for role in roles)]
    known = list(dict.fromkeys([*names, *(role for name in names for role in _roles_of(enforcer, name))]))
    for name in names:
        if resource.startswith(SUBJECT_PREFIX):
            grant = subjects.grant_of(name, resource.removeprefix(SUBJECT_PREFIX), action)
            found = [] if grant is None else grant
        else:
            found = enforcer.enforce_ex(name, resource, action)[1]
        if found:
            return Explanation(True, ", ".join(["p", *found]), tuple(known))
    return Explanation(False, None, tuple(known))


def _roles_of(enforcer: Any, name: str) -> list[str]:
    return list(enforcer.get_implicit_roles_for_user(name)) if "g" in enforcer.get_model().model else []


def names_of(peer: CertifiedPeer | None) -> tuple[str, ...]:
    """Return the names that a policy knows a client by: its own, and those of the roles of its token. None without a name."""
    if peer is None or not peer.common_name or peer.common_name.startswith(ROLE_PREFIX):
        return ()
    roles: tuple[str, ...] = getattr(peer, "roles", ())
    return (peer.common_name, *(ROLE_PREFIX + role for role in roles))


def _load(model_file: Path | None, policy_file: Path) -> tuple[Any, SubjectGrants]:
    casbin = _casbin()

    def new_model() -> Any:
        if model_file is None:
            return casbin.Enforcer.new_model(text=resources.MODEL)
        return casbin.Enforcer.new_model(str(model_file))

    try:
        model = new_model()
        missing = [part for part in "rpem" if part not in model.model]
        if missing:
            raise ValueError(f"it has no section for {missing[0]!r}")
    except Exception as error:  # casbin's parser raises many kinds of errors
        raise InvalidConfig(f"`tls.client.authz.model`, {model_file}, cannot be used: {error!r}") from None
    fields = {name: len(model["p"][name].tokens) for name in model["p"]}
    _check_policy(policy_file, fields, "g" in model.model, is_typed=model_file is None)
    try:
        enforcer = casbin.Enforcer(model, casbin.persist.adapters.FileAdapter(str(policy_file)))
        bare = casbin.Enforcer(new_model())
        return enforcer, SubjectGrants(bare, enforcer.get_model().model)
    except InvalidConfig:
        raise
    except Exception as error:
        raise InvalidConfig(
            f"`tls.client.authz.policy`, {policy_file}, cannot be used: {error!r}", hint=_HINT
        ) from None


def _casbin() -> Any:
    import importlib

    return importlib.import_module("casbin")  # it has no types


def _check_policy(policy_file: Path, fields: dict[str, int], has_roles: bool, *, is_typed: bool) -> None:
    """Check every line: casbin ignores lines that it does not know, and fails on short ones at the first request."""
    try:
        lines = policy_file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"`tls.client.authz.policy`, {policy_file}, cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        kind, *values = [value.strip() for value in next(csv.reader([line]))]
        is_policy = fields.get(kind) == len(values) and all(values)
        if not is_policy and not (has_roles and kind.startswith("g") and len(values) >= 2):
            raise InvalidConfig(f"{policy_file}, line {number}, is not a policy: {line.strip()!r}", hint=_HINT)
        fault = resources.resource_fault(values[1]) if is_typed and kind == "p" else None
        if fault is not None:
            raise InvalidConfig(f"{policy_file}, line {number}, has the resource {values[1]!r}", hint=fault)
