"""Planted bugs of consumer groups on the server: the timeouts of members, and which requests their coordinator refuses."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

GROUPS: Final = "src/bascule/readers/groups.py"

TESTS: Final = "tests/unit/readers/test_groups.py"
TIMEOUTS: Final = "tests/unit/readers/test_group_timeouts.py"

MUTANTS: Final = (
    Mutant(
        "a server that does not coordinate the group answers",
        GROUPS,
        "        if group.coordinator != self._server_id:\n            return",
        "        if False:\n            return",
        f"{TESTS}::test_groups_are_spread_over_coordinators_and_only_they_answer",
    ),
    Mutant(
        "assignments of a newer epoch are given out",
        GROUPS,
        "        if group.epoch < epoch:\n",
        "        if False:\n",
        f"{TESTS}::test_assignments_are_refused_in_order_of_what_is_wrong",
    ),
    Mutant(
        "an older epoch than the group's is refused",
        GROUPS,
        "        if group.epoch < epoch:\n",
        "        if group.epoch != epoch:\n",
        f"{TESTS}::test_the_life_of_a_group",
    ),
    Mutant(
        "a request for assignments is no heartbeat",
        GROUPS,
        "        self._seen[name, consumer] = self._loop.time()\n        return group, member\n",
        "        return group, member\n",
        f"{TESTS}::test_a_silent_member_is_put_out_and_one_that_speaks_stays",
    ),
    Mutant(
        "a member is removed although it has sent a heartbeat",
        GROUPS,
        "        if left > 0:\n",
        "        if False:\n",
        f"{TESTS}::test_a_silent_member_is_put_out_and_one_that_speaks_stays",
    ),
    Mutant(
        "a silent member stays",
        GROUPS,
        "        elif key not in self._expiring:\n",
        "        elif False:\n",
        f"{TESTS}::test_a_silent_member_is_put_out_and_one_that_speaks_stays",
    ),
    Mutant(
        "a member that could not be removed is not tried again",
        GROUPS,
        "            self._arm(key, self._timeout)  # still a member: retried\n",
        "            pass\n",
        f"{TESTS}::test_a_member_that_cannot_be_put_out_is_tried_again",
    ),
    Mutant(
        "a former coordinator times members",
        GROUPS,
        "set() if group is None or group.coordinator != self._server_id else set(group.members)",
        "set() if group is None else set(group.members)",
        f"{TESTS}::test_who_coordinates_no_more_puts_nobody_out",
    ),
    Mutant(
        "a coordinator that starts does not time the members",
        GROUPS,
        "        self._runs = True\n        self.reload()\n",
        "        self._runs = True\n",
        f"{TIMEOUTS}::test_a_coordinator_that_starts_removes_members_that_never_send_a_heartbeat",
    ),
    Mutant(
        "a member that left keeps its timer",
        GROUPS,
        "            self._forget((name, consumer))\n",
        "            pass\n",
        f"{TIMEOUTS}::test_a_member_that_has_left_is_not_removed_again",
    ),
)
