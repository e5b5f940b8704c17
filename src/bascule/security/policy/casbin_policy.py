"""A policy with a casbin model of the operator's own, as for Liftbridge: resources have no types, apart from `subject:<pattern>`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bascule.errors import InvalidConfig
from bascule.security.policy.lines import MalformedLine, PolicyLine, check_shapes
from bascule.security.policy.subjects import SubjectGrants


class CasbinPolicy:
    names_plain_subjects = True
    """A line of PublishToSubject may name the subject as it is."""

    def __init__(self, model_file: Path, policy_file: Path, text: str) -> None:
        """`text` is the content of the policy file. Raises InvalidConfig when a file cannot be used."""
        casbin = _casbin()

        def new_model() -> Any:
            return casbin.Enforcer.new_model(str(model_file))

        try:
            model = new_model()
            missing = [part for part in "rpem" if part not in model.model]
            if missing:
                raise ValueError(f"it has no section for {missing[0]!r}")
        except Exception as error:  # casbin's parser raises many kinds of errors
            raise InvalidConfig(f"`tls.client.authz.model`, {model_file}, cannot be used: {error!r}") from None
        fields = {name: len(model["p"][name].tokens) for name in model["p"]}
        check_shapes(text, fields, has_roles="g" in model.model)
        try:
            self._enforcer = casbin.Enforcer(model, casbin.persist.adapters.FileAdapter(str(policy_file)))
            self._subjects = SubjectGrants(casbin.Enforcer(new_model()), self._enforcer.get_model().model)
        except InvalidConfig:
            raise
        except Exception as error:
            raise MalformedLine(f"it cannot be used: {error!r}") from None

    @property
    def names_subjects(self) -> bool:
        """Whether lines name subjects. A policy without such lines was written for Liftbridge, which checks no subject of a stream."""
        return not self._subjects.is_empty

    def allows(self, name: str, resource: str, action: str) -> bool:
        return bool(self._enforcer.enforce(name, resource, action))

    def allows_subject(self, name: str, subject: str, action: str) -> bool:
        return self._subjects.allows(name, subject, action)

    def line(self, name: str, resource: str, action: str) -> PolicyLine | None:
        return _line(self._enforcer.enforce_ex(name, resource, action)[1])

    def subject_line(self, name: str, subject: str, action: str) -> PolicyLine | None:
        return _line(self._subjects.grant_of(name, subject, action))

    def roles_of(self, name: str) -> list[str]:
        has_roles = "g" in self._enforcer.get_model().model
        return list(self._enforcer.get_implicit_roles_for_user(name)) if has_roles else []


def _line(found: list[str] | None) -> PolicyLine | None:
    return PolicyLine("p", tuple(found)) if found else None


def _casbin() -> Any:
    import importlib

    return importlib.import_module("casbin")  # it has no types
