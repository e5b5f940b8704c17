"""`bascule context`: several clusters by name."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from bascule.cli.target import saved_clusters as contexts
from bascule.cli.target import target
from bascule.errors import InvalidOption
from tests.cli.command_line import Run


def test_there_is_none_at_first(call: Run) -> None:
    assert call("context", "list").ok().out == ""
    assert call("context", "list", "--json").ok().json == []
    call("context", "show").failed(3, "there is no current context", "context add")


def test_add_use_show_remove(call: Run, home: Path) -> None:
    assert "It is the current context" in call("context", "add", "dev").ok().out
    assert (
        "`bascule context use prod`"
        in call("context", "add", "prod", "-s", "a:1,b:2", "--tls", "--timeout", "2s").ok().out
    )
    assert call("context", "list").ok().rows == [["*", "dev", "127.0.0.1:9292", "no"], ["-", "prod", "a:1,b:2", "yes"]]
    call("context", "use", "prod").ok()
    shown = call("context", "show", "--json").ok().json
    assert shown == {"name": "prod", "current": True, "server": "a:1,b:2", "tls": True, "timeout": "2s"}
    assert ["server", "127.0.0.1:9292"] in call("context", "show", "dev").ok().rows
    call("context", "remove", "prod").ok()
    assert call("context", "list", "--json").ok().json == [
        {"name": "dev", "current": False, "server": "127.0.0.1:9292", "timeout": "5s"}
    ]
    file = home / "bascule" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["contexts.json"]


def test_what_is_wrong_is_refused_and_nothing_is_written(call: Run, home: Path) -> None:
    call("context", "add", "a b").failed(2, "`NAME`", "`a b`")
    call("context", "add", "x", "--server", "http://a").failed(2, "`--server`", "`http://a`", "127.0.0.1:9292")
    call("context", "add", "x", "--timeout", "soon").failed(2, "`--timeout`", "`soon`")
    call("context", "add", "x", "--tls-ca", "missing.pem").failed(2, "`--tls-ca`", "`missing.pem`")
    assert not (home / "bascule").exists()


def test_a_name_is_taken_once(call: Run) -> None:
    call("context", "add", "dev").ok()
    call("context", "add", "dev", "-s", "b:1").failed(3, "`dev`", "--replace")
    call("context", "add", "dev", "-s", "b:1", "--replace").ok()
    assert call("context", "show", "--json").json["server"] == "b:1"


@pytest.mark.parametrize("command", ["use", "remove", "show"])
def test_an_unknown_context_is_named_with_those_there_are(call: Run, command: str) -> None:
    call("context", command, "prod").failed(3, "`prod`", "bascule context add prod")
    call("context", "add", "dev").ok()
    call("context", command, "prod").failed(3, "`prod`", "`dev`")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"contexts": []}', '{"current": 1}', '{"contexts": {"a": {"sever": "x"}}}', '{"contexts": {"a": 1}}'],
)
def test_a_damaged_file_is_reported_and_kept(call: Run, home: Path, text: str) -> None:
    file = home / "bascule" / "contexts.json"
    file.parent.mkdir()
    file.write_text(text)
    call("context", "list").failed(4, str(file))
    call("context", "add", "dev").failed(4, str(file))
    assert file.read_text() == text


def test_files_are_remembered_by_absolute_path(call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.chdir(tmp_path)
    call("context", "add", "dev", "--tls-ca", "ca.pem").ok()
    assert call("context", "show", "--json").json["tls_ca"] == str(tmp_path / "ca.pem")


def test_what_counts_first(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target.choose().server == "127.0.0.1:9292"
    call("context", "add", "one", "-s", "one:1", "--tls").ok()
    call("context", "add", "two", "-s", "two:2").ok()
    assert (target.choose().name, target.choose().speaks_tls) == ("one", True)
    monkeypatch.setenv("BASCULE_CONTEXT", "two")
    assert target.choose().server == "two:2"
    assert target.choose(context="one").server == "one:1"
    assert target.choose(server="three:3") == target.Target(None, contexts.Context(server="three:3"))
    assert target.choose(server="three:3", context="one").speaks_tls
    assert not target.choose(context="one", tls=False).speaks_tls
    monkeypatch.setenv("BASCULE_CONTEXT", "four")
    call("stream", "list").failed(3, "`four`", "`one`, `two`")


def test_the_home_of_contexts_is_xdg_s() -> None:
    assert contexts.file_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/bascule/contexts.json")
    assert contexts.file_path({"XDG_CONFIG_HOME": "x"}) == Path.home() / ".config/bascule/contexts.json"
    assert contexts.file_path({}) == Path.home() / ".config/bascule/contexts.json"


def test_tokens_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" secret\n")
    assert contexts.read_token(str(file)) == "secret"
    assert contexts.read_token(None) is None
    file.write_bytes(b"two\nlines")
    for path in (file, tmp_path / "missing"):
        with pytest.raises(InvalidOption, match="token"):
            contexts.read_token(str(path))


def test_the_file_is_json_for_people(call: Run, home: Path) -> None:
    call("context", "add", "dev").ok()
    text = (home / "bascule" / "contexts.json").read_text("utf-8")
    assert json.loads(text) == {"current": "dev", "contexts": {"dev": {"server": "127.0.0.1:9292"}}}
    assert text.count("\n") > 3
