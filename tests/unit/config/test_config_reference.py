"""The reference is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bascule.config import KEYS, ServerConfig, load
from bascule.config.reference import render_page, render_sample
from tools.reference import REFERENCE, main, pages


@pytest.mark.parametrize("path", [path for path, _ in pages()], ids=lambda path: path.name)
def test_the_generated_page_is_up_to_date(path: Path) -> None:
    expected = dict(pages())[path]
    assert path.read_text("utf-8") == expected, "run `make docs`"


def test_the_check_finds_a_stale_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    monkeypatch.setattr("tools.reference.render_limits", lambda: "other")
    assert main(["--check"]) == 1
    assert "limits.md is out of date" in capsys.readouterr().out


def test_the_page_names_every_key_and_variable() -> None:
    page = render_page()
    for key in KEYS.values():
        assert f"`{key.name}`" in page
        assert f"`{key.environment}`" in page
        assert key.meaning in page


def test_the_settings_of_the_cluster_have_their_own_part() -> None:
    own, shared = render_page().split("## Settings of the cluster")
    assert "#### `clustering.namespace`" in shared
    assert "#### `streams.sync`" in shared
    assert "#### `clustering.server.id`" in own
    assert "#### `data.dir`" in own


def test_the_sample_file_loads_as_it_is() -> None:
    assert load(REFERENCE / "bascule.yaml", environ={}) == ServerConfig()


def test_the_sample_file_loads_with_every_line_switched_on(tmp_path: Path) -> None:
    switched_on = re.sub(r"^#(?=[a-z])", "", render_sample(), flags=re.MULTILINE)
    # Of logins, of sources of the cluster secret, and of sources of the policy, there may be one only.
    others = (
        "nats.user",
        "nats.password",
        "nats.token",
        "nats.nkey.seed",
        "cluster.secret",
        "security.policies.admins",
    )
    for other in others:
        switched_on = switched_on.replace(f"\n{other}:", f"\n#{other}:")
    path = tmp_path / "bascule.yaml"
    path.write_text(switched_on, "utf-8")
    config = load(path, environ={})
    assert config.cluster.streams.retention_max_age_ns == ServerConfig().cluster.streams.retention_max_age_ns
    lines = [line for line in switched_on.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(KEYS) - len(others)
