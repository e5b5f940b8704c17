"""Who may do what: a casbin model and a policy of lines `p, <common name>, <resource>, <action>`.

The client is the common name of its certificate. Resources are stream names, group ids, `*` for metadata, NATS subjects; actions are
named after the RPC. What no line grants is denied. Files are read at the start and on `reload`; a file that cannot be used
then leaves the policy that was there in force.
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


class Peer(Protocol):
    """Who is at the other end of a connection."""

    @property
    def common_name(self) -> str | None: ...


class Authorizer:
    def __init__(self, model: Path | None, policy: Path | None) -> None:
        """Raises InvalidConfig when a file cannot be used. Without files everything is allowed: see `disabled`."""
        self._model = model
        self._policy = policy
        self._enforcer = None if model is None or policy is None else _load(model, policy)
        self._decided: dict[tuple[str, str, str], bool] = {}
        self.generation = 0
        """Grows with every policy that comes into force: decisions of an earlier one may be remembered until then."""

    @classmethod
    def disabled(cls) -> Authorizer:
        """Everybody may do everything."""
        return cls(None, None)

    @classmethod
    def from_config(cls, tls: Tls) -> Authorizer:
        return cls(tls.client_authz_model, tls.client_authz_policy) if tls.client_authz_enabled else cls.disabled()

    @property
    def is_enabled(self) -> bool:
        return self._enforcer is not None

    def allows(self, peer: Peer | None, resource: str, action: str) -> bool:
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

    def require(self, peer: Peer | None, resource: str, action: str) -> None:
        """Raises PermissionDenied, in the words that clients know."""
        if not self.allows(peer, resource, action):
            raise PermissionDenied(f"The client is not authorized to call {action} on resource {resource}")

    def reload(self) -> bool:
        """Read the files again. False, and a line in the log, when they cannot be used: what was in force stays in force."""
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
    except Exception as error:  # casbin raises whatever its parser stumbles over
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
    """Casbin passes over lines it does not know, and stumbles over short ones when the first client is asked about."""
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
            raise InvalidConfig(f"{policy_file}, line {number}, is no policy: {line.strip()!r}", hint=_HINT)
