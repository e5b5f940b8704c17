"""Decides what the acks of an appended batch wait for.

| `streams.sync` | LEADER ack            | readers see it                          | ALL ack                                 |
|----------------|-----------------------|-----------------------------------------|-----------------------------------------|
| `interval`     | written               | written on all in-sync replicas         | written on all in-sync replicas         |
| `ack`          | written               | written on all in-sync replicas         | synced to disk on all in-sync replicas  |
| `always`       | synced to disk        | synced to disk on all in-sync replicas  | synced to disk on all in-sync replicas  |

While a leader hands over, LEADER acks wait like ALL acks: an acked message is then on the successor.
"""

from __future__ import annotations

from typing import NamedTuple


class AckWaits(NamedTuple):
    leader_acks_are_due: bool
    """LEADER acks are sent at once."""
    awaits_disk: bool
    """LEADER acks wait for this server's disk."""
    awaits_all: bool
    """ALL acks, or LEADER acks too, wait for the in-sync replicas."""
    with_leader_acks: bool
    """LEADER acks are sent together with the ALL acks."""


def ack_waits(*, wants_leader: bool, wants_all: bool, syncs_all: bool, hands_over: bool) -> AckWaits:
    """`syncs_all`: `streams.sync` is `always`."""
    with_leader_acks = wants_leader and hands_over
    awaits_disk = wants_leader and syncs_all and not with_leader_acks
    is_due = wants_leader and not awaits_disk and not with_leader_acks
    return AckWaits(is_due, awaits_disk, wants_all or with_leader_acks, with_leader_acks)
