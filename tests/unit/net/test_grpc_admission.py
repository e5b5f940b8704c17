"""Connections are bounded in all and by address; those that have been without calls longest give way."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.net.grpc.admission import Admission, AdmissionBounds


@dataclass(eq=False)
class Connection:
    host: str
    calls_begun: int = 0
    has_calls: bool = False


def admission(**bounds: float) -> Admission[Connection]:
    return Admission(AdmissionBounds(**bounds))  # type: ignore[arg-type]


def filled(found: Admission[Connection], *hosts: str) -> list[Connection]:
    made = [Connection(host) for host in hosts]
    for one in made:
        assert found.make_room(one.host) == (True, None)
        found.add(one, 0.0)
    return made


def test_the_number_of_connections_is_bounded() -> None:
    found = admission(connections_max=2)
    first, _ = filled(found, "a", "b")
    assert found.make_room("c") == (False, None)
    found.discard(first)
    assert found.make_room("c") == (True, None)


def test_the_number_of_connections_from_one_address_is_bounded() -> None:
    found = admission(per_address_max=2)
    filled(found, "a", "a")
    assert found.make_room("a") == (False, None)
    assert found.make_room("b") == (True, None)


def test_the_connection_without_calls_for_longest_gives_way() -> None:
    found = admission(per_address_max=3, evicted_after_seconds=60)
    first, second, third = filled(found, "a", "a", "a")
    first.has_calls = True
    assert found.sweep(30.0) == []
    assert found.make_room("a") == (False, None)  # none has been idle for long enough
    second.calls_begun = 1
    assert found.sweep(70.0) == []
    assert found.make_room("a") == (True, third)
    assert len(found) == 2
    found.discard(third)  # its transport is closed later
    assert len(found) == 2 and set(found) == {first, second}


def test_a_connection_that_has_calls_again_does_not_give_way() -> None:
    found = admission(connections_max=1, evicted_after_seconds=60)
    (only,) = filled(found, "a")
    assert found.sweep(70.0) == []
    only.has_calls = True
    assert found.make_room("b") == (False, None)


def test_the_address_with_most_connections_gives_way_first() -> None:
    found = admission(connections_max=4, evicted_after_seconds=60)
    _, crowd, _, _ = filled(found, "few", "many", "many", "many")
    assert found.sweep(70.0) == []
    assert found.make_room("new") == (True, crowd)


def test_a_connection_without_calls_for_too_long_has_expired() -> None:
    found = admission(idle_seconds=100)
    first, second = filled(found, "a", "a")
    assert found.sweep(50.0) == []
    second.calls_begun = 7
    assert found.sweep(99.0) == []
    assert found.sweep(101.0) == [first]
