"""Where a server binds and what it tells clients (the rules are drawn on top of `config/values/address.py`)."""

from __future__ import annotations

import pytest

from bascule.config import Address, load, load_with_sources
from bascule.config.values.address import parse_address
from bascule.errors import InvalidConfig


def addresses(flags: dict[str, object], bound_port: int = 40_000) -> tuple[str, str]:
    listener = load(flags={"security.insecure": True, **flags}, environ={}).listener
    return str(listener.bind()), str(listener.advertise(bound_port=bound_port, machine_name="box"))


def test_only_listen_binds_and_advertises_listen() -> None:
    assert addresses({"listen": "192.168.0.1:4222"}) == ("192.168.0.1:4222", "192.168.0.1:4222")


def test_only_host_binds_and_advertises_host() -> None:
    assert addresses({"host": "192.168.0.1"}) == ("192.168.0.1:9292", "192.168.0.1:9292")


def test_host_and_port_bind_and_advertise_both() -> None:
    assert addresses({"host": "my-host", "port": 4333}) == ("my-host:4333", "my-host:4333")


def test_listen_and_host_bind_listen_and_advertise_host() -> None:
    assert addresses({"listen": "192.168.0.1:4222", "host": "my-host", "port": 4333}) == (
        "192.168.0.1:4222",
        "my-host:4333",
    )


def test_listen_and_host_without_port_advertise_the_port_that_is_bound() -> None:
    assert addresses({"listen": "127.0.0.1:5050", "host": "my-host"}) == ("127.0.0.1:5050", "my-host:5050")


def test_neither_binds_loopback_and_advertises_localhost() -> None:
    assert addresses({}) == ("127.0.0.1:9292", "localhost:9292")


def test_only_port_moves_both() -> None:
    assert addresses({"port": 7000}) == ("127.0.0.1:7000", "localhost:7000")


@pytest.mark.parametrize(
    ("flags", "advertised"),
    [
        ({"port": 0}, "localhost:40000"),
        ({"listen": "127.0.0.1:0"}, "127.0.0.1:40000"),
        ({"host": "my-host", "port": 0}, "my-host:40000"),
        ({"host": "my-host", "listen": "127.0.0.1:0"}, "my-host:40000"),
    ],
)
def test_port_zero_advertises_the_port_the_system_gave(flags: dict[str, object], advertised: str) -> None:
    assert addresses(flags)[1] == advertised


@pytest.mark.parametrize("wildcard", ["0.0.0.0:9292", ":9292", "[::]:9292", "0:9292"])
def test_a_wildcard_is_bound_but_never_advertised(wildcard: str) -> None:
    listener = load(flags={"listen": wildcard, "security.insecure": True}, environ={}).listener
    assert listener.bind().is_wildcard
    assert listener.advertise(bound_port=9292, machine_name="box") == Address("box", 9292)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "0"])
def test_a_wildcard_as_host_is_bound_but_never_advertised(wildcard: str) -> None:
    loaded = load_with_sources(flags={"host": wildcard, "security.insecure": True}, environ={})
    listener = loaded.config.listener
    assert listener.bind().is_wildcard
    assert listener.advertise(bound_port=9292, machine_name="box") == Address("box", 9292)
    (warning,) = loaded.warnings
    assert "`host`" in warning and "listen: 0.0.0.0:9292" in warning


def test_a_wildcard_as_host_needs_what_every_open_server_needs() -> None:
    with pytest.raises(
        InvalidConfig, match=r"listens on 0\.0\.0\.0:9292,.* without TLS.*`host` = 0\.0\.0\.0"
    ) as raised:
        load(flags={"host": "0.0.0.0"}, environ={})
    assert "add this line to the configuration: `security.insecure: true`" in (raised.value.hint or "")


def test_a_port_alone_is_one_on_loopback() -> None:
    loaded = load_with_sources(flags={"listen": "9292"}, environ={})
    assert loaded.config.listener.bind() == Address("127.0.0.1", 9292)
    assert "`listen` is `9292`" in loaded.warnings[0] and "0.0.0.0:9292" in loaded.warnings[0]


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert addresses({"listen": "[::1]:9292"}) == ("[::1]:9292", "[::1]:9292")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        "localhost:x",
        "localhost:70000",
        "a b:1",
        "::1:9292",
        "[::1]",
        "[zz]:1",
        "-x:1",
        "a/b:1",
        "h:-1",
    ],
)
def test_a_bad_listen_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)
