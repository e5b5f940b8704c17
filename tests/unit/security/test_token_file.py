"""Static tokens: what a file holds, and which text matches it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bascule.errors import CallerError, InvalidConfig, StateError
from bascule.security.identity import Identity
from bascule.security.token_file import add_token, create_token, read_tokens, remove_token, split_token


def test_a_file_holds_hashes_and_gives_identities_back(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    expected = {}
    for identity in (Identity("alice", ("admin", "writers"), 1_900_000_000.0), Identity("bob")):
        text, token = create_token(identity)
        add_token(file, token)
        expected[token.id] = identity
        assert text.rpartition("_")[2] not in file.read_text()
        assert token.matches(text.rpartition("_")[2])
        assert not token.matches("0" * 64)
    assert {number: token.identity for number, token in read_tokens(file).items()} == expected
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_removed_token_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tokens = [create_token(Identity(name))[1] for name in ("a", "b", "c")]
    for token in tokens:
        add_token(file, token)
    assert remove_token(file, tokens[1].id).identity.name == "b"
    assert [token.identity.name for token in read_tokens(file).values()] == ["a", "c"]
    with pytest.raises(StateError, match="no token"):
        remove_token(file, tokens[1].id)


@pytest.mark.parametrize("name", ["", "role:admin", "two words", "a,b", "new\nline", "x" * 300, "-"])
def test_a_name_that_would_break_the_file_or_a_policy_is_refused(name: str) -> None:
    with pytest.raises(CallerError):
        create_token(Identity(name))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("one two", "2 fields"),
        ("zzzzzzzzzzzz bob - - scrypt$16384$8$1$00$00", "hexadecimal"),
        ("0123456789ab role:x - - scrypt$16384$8$1$" + "00" * 16 + "$" + "00" * 32, "reserved"),
        ("0123456789ab bob - tomorrow scrypt$16384$8$1$" + "00" * 16 + "$" + "00" * 32, "2027-01-31"),
        ("0123456789ab bob - - scrypt$16384$8$1$" + "00" * 16, "scrypt"),
        ("0123456789ab bob - - scrypt$1073741824$8$1$" + "00" * 16 + "$" + "00" * 32, "range"),
        ("0123456789ab bob - - scrypt$16384$8$1$" + "00" * 16 + "$", "range"),
        ("0123456789ab bob - - md5$16384$8$1$" + "00" * 16 + "$" + "00" * 32, "range"),
    ],
)
def test_a_line_that_is_no_token_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# a comment\n\n{text}\n")
    with pytest.raises(InvalidConfig, match=problem) as caught:
        read_tokens(file)
    assert "line 3" in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["", "bascule_", "bascule_0123456789ab_", "bascule_0123456789ab_zz", "x.y.z", "bascule_0123456789ab_" + "G" * 64],
)
def test_another_text_is_no_static_token(text: str) -> None:
    assert split_token(text) is None
