"""Metrics of the metadata's Raft group, of consumer groups and, on the controller only, of the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule import limits
from bascule.broker.metrics.exposition import Page, labels
from bascule.names import id_fault
from bascule.readers.pace import Pace

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.operations.members import Members


async def answering(members: Members) -> set[str] | None:
    """The members that answer; None unless this server is the controller, since one server is enough to ask them all."""
    return await members.answering() if members.controller.is_leader else None


async def collect(page: Page, controller: Controller, answers: set[str] | None, pace: Pace) -> int:
    """Returns how many groups did not fit on the page."""
    _raft(page, controller)
    if answers is not None:
        await _cluster(page, controller, answers, pace)
    return _groups(page, controller)


def _raft(page: Page, controller: Controller) -> None:
    node = controller.driver.node
    page.add("bascule_raft_term", node.term)
    page.add("bascule_raft_commit_index", node.commit_index)
    page.add("bascule_raft_applied_index", controller.metadata.applied_index)
    page.add("bascule_raft_last_index", node.last_index)
    page.add("bascule_raft_members", len(node.membership.voters), labels(kind="voter"))
    page.add("bascule_raft_members", len(node.membership.learners), labels(kind="learner"))
    page.add("bascule_controller_known", controller.leader is not None)
    page.add("bascule_controller", controller.is_leader)
    if controller.leader is not None:
        page.add("bascule_controller_info", 1, labels(controller=controller.leader))


async def _cluster(page: Page, controller: Controller, answers: set[str], pace: Pace) -> None:
    members = controller.members
    streams = list(controller.metadata.streams.values())
    counts = dict.fromkeys(("", "_paused", "_leaderless", "_under_replicated", "_moving"), 0)
    for stream in streams:
        for partition in stream.partitions:
            counts[""] += 1
            counts["_paused"] += partition.paused
            counts["_leaderless"] += not partition.paused and partition.leader not in answers
            counts["_under_replicated"] += partition.is_under_replicated
            counts["_moving"] += bool(partition.target_replicas)
        await pace.rest()
    page.add("bascule_cluster_streams", len(streams))
    page.add("bascule_cluster_policies", len(controller.metadata.policies))
    for kind, count in counts.items():
        page.add(f"bascule_cluster_partitions{kind}", count)
    silent = sum(member not in answers for member in members)
    page.add("bascule_cluster_servers", len(members) - silent, labels(state="answering"))
    page.add("bascule_cluster_servers", silent, labels(state="silent"))


def _groups(page: Page, controller: Controller) -> int:
    groups = controller.metadata.groups.values()
    coordinated = sorted(group.id for group in groups if group.coordinator == controller.server_id)
    page.add("bascule_groups", len(coordinated))
    shown = [name for name in coordinated if id_fault(name) is None][: limits.METRICS_GROUPS_MAX]
    for name in shown:
        members = controller.metadata.groups[name].members
        page.add("bascule_group_members", len(members), labels(group=name))
    return len(coordinated) - len(shown)
