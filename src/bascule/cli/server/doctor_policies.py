"""Check of the policy that the cluster stores: all servers use it, and name the same administrators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bascule.cli.target.target import Target
from bascule.cli.terminal.finding import OK, SKIPPED, WARNING, Check
from bascule.config.values.shown import plural
from bascule.errors import BasculeError, PermissionDenied, StateError

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterPolicy
    from bascule.client.connection.metadata import BrokerInfo


async def look(target: Target, brokers: Iterable[BrokerInfo]) -> list[Check]:
    """Ask each broker: its configuration decides which policy it uses. Without a policy in the cluster there is nothing to check."""
    found: dict[str, ClusterPolicy] = {}
    others: list[str] = []
    for broker in brokers:
        try:
            found[broker.id] = await _policy(target, broker)
        except PermissionDenied:
            return [Check("policies", SKIPPED, "this user may not list them; it needs `ListPolicies` on `cluster:*`")]
        except StateError:
            others.append(broker.id)
        except BasculeError:
            continue  # it does not answer, which another check reports, or has an older version
    return [judge(found, others)] if found else []


async def _policy(target: Target, broker: BrokerInfo) -> ClusterPolicy:
    import bascule
    from bascule.client.admin.cluster import ClusterAdmin

    async with bascule.connect(f"{broker.host}:{broker.port}", **target.client_options()) as client:
        return await ClusterAdmin(client).policies()


def judge(found: dict[str, ClusterPolicy], others: list[str]) -> Check:
    """Compare the answers of the servers; `others` do not use the policy that the cluster stores."""
    if others:
        return Check(
            "policies",
            WARNING,
            f"{', '.join(sorted(found))} use the policy of the cluster, {', '.join(sorted(others))} another one or none",
            "set `security.policies.source: cluster` on all servers",
        )
    admins = {server: ", ".join(sorted(policy.admins)) for server, policy in sorted(found.items())}
    if len(set(admins.values())) > 1:
        return Check(
            "policies",
            WARNING,
            f"servers name different administrators: {'; '.join(f'{server} {names}' for server, names in admins.items())}",
            "set the same `security.policies.admins` on all servers",
        )
    lines = max(len(policy.lines) for policy in found.values())
    return Check(
        "policies", OK, f"the cluster stores {plural(lines, 'line')}; administrators: {next(iter(admins.values()))}"
    )
