"""Authorization by a casbin model and a policy of lines `p, <common name>, <resource>, <action>`.

A client is identified by the common name of its certificate. Resources are stream names, group ids, NATS subjects and `*` for
metadata; actions have the names of RPCs. Anything that no line grants is denied. The files are read at the start and on
`reload`; when a file cannot be used on reload, the previous policy stays in force.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any, Final, Protocol

from bascule import limits
from bascule.config.sections.listener import Tls
from bascule.errors import InvalidConfig, PermissionDenied

_logger = logging.getLogger(__name__)

_HINT: Final = "lines are `p, <common name>, <resource>, <action>`; `#` begins a comment"


class CertifiedPeer(Protocol):
    """The client of a connection, with the common name of its certificate."""

    @property
    def common_name(self) -> str | None: ...


class Authorizer:
    def __init__(self, model: Path | None, policy: Path | None) -> None:
        """Raises InvalidConfig when a file cannot be used. Without files every call is allowed: see `disabled`."""
        self._model = model
        self._policy = policy
        self._enforcer = None if model is None or policy is None else _load(model, policy)
        self._decided: dict[tuple[str, str, str], bool] = {}
        self.generation = 0
        """Increases with every new policy; callers may cache decisions of the same generation."""

    @classmethod
    def disabled(cls) -> Authorizer:
        """Allows every call of every client."""
        return cls(None, None)

    @classmethod
    def from_config(cls, tls: Tls) -> Authorizer:
        return cls(tls.client_authz_model, tls.client_authz_policy) if tls.client_authz_enabled else cls.disabled()

    @property
    def is_enabled(self) -> bool:
        return self._enforcer is not None

    def allows(self, peer: CertifiedPeer | None, resource: str, action: str) -> bool:
        if self._enforcer is None:
            return True
        name = None if peer is None else peer.common_name
        if not name:
            return False
        asked = (name, resource, action)
        decided = self._decided.get(asked)
        if decided is None:
            if len(self._decided) >= limits.AUTHORIZATIONS_REMEMBERED_MAX:
                self._decided.clear()
            decided = self._decided[asked] = bool(self._enforcer.enforce(*asked))
        return decided

    def require(self, peer: CertifiedPeer | None, resource: str, action: str) -> None:
        """Raises PermissionDenied, with the text that clients know."""
        if not self.allows(peer, resource, action):
            raise PermissionDenied(f"The client is not authorized to call {action} on resource {resource}")

    def reload(self) -> bool:
        """Read the files again. When they cannot be used, logs an error, keeps the present policy and returns False."""
        if self._model is None or self._policy is None or self._enforcer is None:
            _logger.info("authorization is off: there is no policy to read again")
            return True
        try:
            self._enforcer = _load(self._model, self._policy)
        except InvalidConfig as error:
            _logger.error("the authorization policy was not changed: %s (%s)", error.message, error.hint)
            return False
        self._decided.clear()
        self.generation += 1
        _logger.info("the authorization policy was read again")
        return True


def _load(model_file: Path, policy_file: Path) -> Any:
    casbin = _casbin()
    try:
        model = casbin.Enforcer.new_model(str(model_file))
        missing = [part for part in "rpem" if part not in model.model]
        if missing:
            raise ValueError(f"it has no section for {missing[0]!r}")
    except Exception as error:  # casbin's parser raises many kinds of errors
        raise InvalidConfig(f"`tls.client.authz.model`, {model_file}, cannot be used: {error!r}") from None
    _check_policy(policy_file, {name: len(model["p"][name].tokens) for name in model["p"]}, "g" in model.model)
    try:
        return casbin.Enforcer(model, casbin.persist.adapters.FileAdapter(str(policy_file)))
    except Exception as error:
        raise InvalidConfig(
            f"`tls.client.authz.policy`, {policy_file}, cannot be used: {error!r}", hint=_HINT
        ) from None


def _casbin() -> Any:
    import importlib

    return importlib.import_module("casbin")  # it has no types


def _check_policy(policy_file: Path, fields: dict[str, int], has_roles: bool) -> None:
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
