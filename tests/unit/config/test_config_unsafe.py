"""A server that others can reach wants TLS and authentication, or says that it goes without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.config import load
from bascule.config.unsafe import unsafe_settings
from bascule.errors import InvalidConfig

TLS = "tls: {cert: /c, key: /k}\n"


def written(directory: Path, text: str) -> Path:
    file = directory / "bascule.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("text", ["", "listen: 127.0.0.1:0", "listen: '[::1]:0'", "host: localhost"])
def test_a_local_server_needs_nothing(tmp_path: Path, text: str) -> None:
    assert unsafe_settings(load(written(tmp_path, text))) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("listen: 0.0.0.0:0", ["no_tls", "no_authentication"]),
        ("listen: :0", ["no_tls", "no_authentication"]),
        ("host: broker.example", ["no_tls", "no_authentication"]),
        ("http.listen: 0.0.0.0:0", ["no_tls", "no_authentication"]),
        ("flight.listen: 192.0.2.1:0", ["no_tls", "no_authentication"]),
        (TLS + "listen: 0.0.0.0:0", ["no_authentication"]),
        (TLS + "listen: 0.0.0.0:0\nsecurity.tokens.file: /t", []),
        (TLS + "listen: 0.0.0.0:0\ntls.client.auth.enabled: true", []),
    ],
)
def test_a_server_that_others_reach_is_open_without_both(tmp_path: Path, text: str, names: list[str]) -> None:
    if names:
        with pytest.raises(InvalidConfig, match="without") as caught:
            load(written(tmp_path, text))
        assert "security.insecure: true" in (caught.value.hint or "")
    config = load(written(tmp_path, f"{text}\nsecurity.insecure: true"))
    assert [one.name for one in unsafe_settings(config)] == names
