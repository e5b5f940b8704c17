"""`bascule token` and `bascule acl`: files that servers read."""

from __future__ import annotations

import stat
from pathlib import Path

from bascule.security.token_file import read_tokens
from tests.cli.command_line import Run


def test_tokens_are_created_listed_and_revoked(bascule: Run, tmp_path: Path) -> None:
    file, secret = tmp_path / "tokens", tmp_path / "alice.token"
    bascule(
        "token", "create", "alice", "-f", str(file), "--role", "writers", "--expires", "90d", "-o", str(secret)
    ).ok()
    shown = bascule("token", "create", "bob", "-f", str(file)).ok().out.strip()
    assert shown.startswith("bascule_") and secret.read_text().startswith("bascule_")
    assert stat.S_IMODE(secret.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = bascule("token", "list", "-f", str(file), "--json").ok().json
    assert [(one["user"], one["roles"], bool(one["expires"])) for one in listed] == [
        ("alice", ["writers"], True),
        ("bob", [], False),
    ]
    bascule("token", "revoke", listed[0]["id"], "-f", str(file)).ok()
    assert [token.identity.name for token in read_tokens(file).values()] == ["bob"]
    bascule("token", "revoke", listed[0]["id"], "-f", str(file)).failed(3, "has no token")
    bascule("token", "create", "role:x", "-f", str(file)).failed(2, "reserved for roles")


def test_a_decision_is_explained(bascule: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.write_text("p, role:readers, stream:orders*, Subscribe\ng, billing, role:readers\n")
    asked = ("acl", "explain", "billing", "--policy", str(policy))
    assert "`p, role:readers, stream:orders*, Subscribe`" in bascule(*asked, "Subscribe", "stream:orders-eu").ok().out
    denied = bascule(*asked, "Publish", "stream:orders", "--json")
    assert denied.code == 3
    assert denied.json == {"allowed": False, "line": None, "names": ["billing", "role:readers"]}


def test_decisions_on_the_audit_stream_are_explained(bascule: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.write_text("p, all, stream:*, *\np, auditor, cluster:*, ReadAudit\np, root, *, *\n")

    def asked(user: str, action: str) -> str:
        return bascule("acl", "explain", user, action, "stream:__audit", "--policy", str(policy)).out

    assert asked("auditor", "Subscribe").startswith("Allowed") and "cluster:*, ReadAudit" in asked(
        "auditor", "Subscribe"
    )
    assert "allows ReadAudit on cluster:* to `all`" in asked("all", "Subscribe")
    assert "no policy can allow DeleteStream on stream:__audit" in asked("root", "DeleteStream")
    assert asked("root", "Subscribe").startswith("Allowed")
    assert asked("auditor", "FetchPartitionMetadata").startswith("Allowed")
