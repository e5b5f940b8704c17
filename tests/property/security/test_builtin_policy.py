"""The built-in model decides as casbin does with the model that its documentation names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bascule.security.policy.builtin import BuiltinPolicy
from bascule.security.policy.lines import PolicyLine, parse_file, parse_line
from bascule.security.policy.resources import SUBJECT_PREFIX, typed

casbin: Any = import_module("casbin")

MODEL = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && (r.act == p.act || p.act == "*")
"""

NAMES = st.sampled_from(["ann", "bob", "role:a", "role:b", "role:c", "role:d"])
ROLES = st.sampled_from(["role:a", "role:b", "role:c", "role:d"])
THINGS = ["", "o", "orders", "orders-eu", "subject:orders"]
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        lambda kind, name, star: f"{kind}:{name}{star}" if name + star else f"{kind}:x",
        st.sampled_from(["stream", "cursor", "group", "cluster"]),
        st.sampled_from(THINGS),
        st.sampled_from(["", "*"]),
    ),
)
ACTIONS = st.sampled_from(["Publish", "Subscribe", "SetCursor", "JoinConsumerGroup", "FetchMetadata", "*"])
GRANTS = st.builds(lambda name, resource, action: PolicyLine("p", (name, resource, action)), NAMES, RESOURCES, ACTIONS)
MEMBERS = st.builds(lambda name, role: PolicyLine("g", (name, role)), NAMES, ROLES)
LINES = st.lists(GRANTS | MEMBERS, max_size=12, unique=True)


@given(LINES, st.lists(st.tuples(NAMES, st.sampled_from([*THINGS, "*"]), ACTIONS), max_size=12))
def test_the_built_in_model_is_the_one_of_casbin(lines: list[PolicyLine], asked: list[tuple[str, str, str]]) -> None:
    enforcer = casbin.Enforcer(casbin.Enforcer.new_model(text=MODEL))
    for line in lines:
        add = enforcer.add_policy if line.kind == "p" else enforcer.add_grouping_policy
        add(*line.values)
    policy = BuiltinPolicy(lines)
    for name, resource, action in asked:
        expected = enforcer.enforce(name, typed(resource, action), action)
        assert policy.allows(name, resource, action) == expected
        why = policy.line(name, typed(resource, action), action)
        assert (why is not None) == expected and (why is None or why in lines)
    for name in {name for name, _, _ in asked}:
        assert set(policy.roles_of(name)) - {name} == set(enforcer.get_implicit_roles_for_user(name)) - {name}


@given(LINES)
def test_lines_are_themselves_again_after_a_file(lines: list[PolicyLine]) -> None:
    assert parse_file("\n".join(line.text for line in lines)) == lines
    assert all(parse_line(line.text).text == line.text for line in lines)


@given(st.text(max_size=40) | st.lists(st.text(max_size=9), max_size=5).map(", ".join))
def test_any_text_is_a_line_or_malformed(text: str) -> None:
    from bascule.security.policy.lines import MalformedLine, parse_granted

    try:
        line = parse_granted(text)
    except MalformedLine as error:
        assert error.problem and error.hint
        return
    assert parse_granted(line.text) == line, "the canonical form is stable"
    assert "\n" not in line.text and parse_file(line.text) == [line], "it is a line of a file"
    BuiltinPolicy([line]).allows_subject("ann", "orders", "Publish")
    assert not line.values[-1].startswith(SUBJECT_PREFIX)
