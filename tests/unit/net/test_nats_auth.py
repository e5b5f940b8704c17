"""Logging in to real nats-servers in every way there is, in the clear and over TLS, on both planes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.broker.nats_options import link_options, nats_login, nats_tls
from bascule.config.sections.nats import Nats
from bascule.errors import InvalidConfig, OperatorError, Unavailable
from bascule.kernels.nats.protocol import CallbackSink, publish_many
from bascule.net.nats.auth import Login, Nkey, client_tls, read_creds, read_seed
from bascule.net.nats.bus import NatsBus
from bascule.net.nats.link import LinkOptions, NatsLink
from tests.support.kernels.probes import CountingSink
from tests.support.nats_server import NatsServer
from tests.support.nats_setup import Authority, ConfiguredNats, KeyPair, operator_config, tls_config
from tests.unit.net.nats_helpers import LOOPS, linked, run, until


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WAYS = ["password", "token", "nkey", "creds"]


def way_in(way: str, directory: Path) -> tuple[str, Nats]:
    """The configuration of a nats-server and of a broker that may use it."""
    directory.mkdir(exist_ok=True)
    if way == "password":
        return "authorization { user: alice, password: 's3cret' }", Nats(user="alice", password="s3cret")
    if way == "token":
        return "authorization { token: 't0ken' }", Nats(token="t0ken")
    if way == "nkey":
        pair, file = KeyPair("U"), directory / "user.nk"
        file.write_text(f"# the broker's key\n{pair.seed}\n")
        return f"authorization {{ users: [ {{ nkey: {pair.public} }} ] }}", Nats(nkey_seed=file)
    config, creds = operator_config()
    file = directory / "user.creds"
    file.write_text(creds)
    return config, Nats(creds=file)


@pytest.mark.parametrize("way", WAYS)
def test_both_planes_log_in(way: str, tmp_path: Path) -> None:
    config, nats = way_in(way, tmp_path / "login")

    async def main(url: str) -> None:
        bus = await NatsBus.connect([url], "control", nats_login(nats), nats_tls(nats))
        answers: list[bytes] = []

        async def answer(data: bytes, _reply: str) -> None:
            answers.append(data)

        await bus.subscribe("a", answer)
        await bus.publish("ready", b"")
        async with linked(url, login=link_options(nats, "x").login) as watched:
            await watched.link.flush()
            watched.link.publish(b"a", b"hello")
            await until(lambda: answers == [b"hello"])
        await bus.close()

    with ConfiguredNats(tmp_path / "nats", config) as server:
        run("asyncio", main(server.url))


@pytest.mark.parametrize("way", WAYS)
def test_who_may_not_log_in_is_told_what_to_correct(way: str, tmp_path: Path) -> None:
    config, _ = way_in(way, tmp_path / "one")
    _, stranger = way_in(way, tmp_path / "other")
    if way in ("password", "token"):
        stranger = Nats(user="alice", password="wrong") if way == "password" else Nats(token="wrong")

    async def main(url: str) -> None:
        for login in (nats_login(stranger), Login()):
            link = NatsLink(
                LinkOptions(servers=(url,), name="t", login=login, connect_attempts=2, reconnect_wait_seconds=0.001)
            )
            with pytest.raises(Unavailable, match="refuses the login: Authorization Violation") as refused:
                await link.connect()
            assert "nats.creds" in str(refused.value.hint)
            assert "wrong" not in str(refused.value)
            await link.close()

    with ConfiguredNats(tmp_path / "nats", config) as server:
        run("asyncio", main(server.url))


def test_credentials_in_the_url_are_used_and_never_shown(tmp_path: Path) -> None:
    async def main(server: NatsServer) -> None:
        async with linked(f"nats://alice:s3%40cret@127.0.0.1:{server.port}") as watched:
            assert watched.states == [(True, server.url)]

    with ConfiguredNats(tmp_path / "nats", "authorization { user: alice, password: 's3@cret' }") as server:
        run("asyncio", main(server))
    with pytest.raises(InvalidConfig) as refused:
        NatsLink(LinkOptions(servers=("ws://alice:s3cret@h:1",), name="t"))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("verify", [False, True])
def test_tls_with_and_without_a_client_certificate(tmp_path: Path, loop: str, verify: bool) -> None:
    authority = Authority(tmp_path / "tls")
    cert, key = authority.issue("client")
    nats = Nats(tls_ca=authority.ca, tls_cert=cert if verify else None, tls_key=key if verify else None)

    async def main(server: NatsServer) -> None:
        options = link_options(nats, "t", [server.url])
        async with linked(server.url, tls=options.tls) as watched:
            link = watched.link
            found: list[bytes] = []
            link.subscribe(b"a", CallbackSink(lambda *message: found.append(message[3])))
            for round_ in range(3):
                if round_:
                    server.stop()
                    await until(lambda: not link.connected)
                    server.start()
                    await until(lambda: link.connected)
                found.clear()
                payloads = [b"small", bytes(range(256)) * 3900, b"x" * 100_000, b"", b"end"]
                for payload in payloads:
                    link.publish(b"a", payload)
                await link.flush(30)
                assert found == payloads
            assert link.stats.reconnects == 2
        bus = await NatsBus.connect([server.url], "control", nats_login(nats), nats_tls(nats))
        assert bus.is_connected
        await bus.close()

    with ConfiguredNats(tmp_path / "nats", tls_config(authority, verify=verify)) as server:
        run(loop, main(server))


def test_a_large_flow_over_tls_loses_nothing(tmp_path: Path, loop: str) -> None:
    authority = Authority(tmp_path / "tls")

    async def main(url: str) -> None:
        tls = client_tls(ca=authority.ca)
        async with linked(url, tls=tls) as reader, linked(url, tls=tls) as writer:
            sink = CountingSink()
            reader.link.subscribe(b"a", sink)
            await reader.link.flush()
            for _ in range(300):
                publish_many(writer.link.output, b"a", bytes(128), 100)
                writer.link.schedule_flush()
                await writer.link.flush(30)
            await until(lambda: sink.messages == 30_000)

    with ConfiguredNats(tmp_path / "nats", tls_config(authority, verify=False)) as server:
        run(loop, main(server.url))


def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path, loop: str) -> None:
    authority, other = Authority(tmp_path / "tls"), Authority(tmp_path / "other", "other")

    async def main(url: str) -> None:
        for tls in (client_tls(ca=other.ca), None):
            options = LinkOptions(servers=(url,), name="t", tls=tls, connect_attempts=1, reconnect_wait_seconds=0.001)
            link = NatsLink(options)
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await link.connect()
            await link.close()

    with ConfiguredNats(tmp_path / "nats", tls_config(authority, verify=False)) as server:
        run(loop, main(server.url))


def test_a_client_without_the_certificate_a_server_wants_is_told(tmp_path: Path, loop: str) -> None:
    authority = Authority(tmp_path / "tls")

    async def main(url: str) -> None:
        tls = client_tls(ca=authority.ca)
        link = NatsLink(LinkOptions(servers=(url,), name="t", tls=tls, connect_attempts=1))
        with pytest.raises(Unavailable):
            await link.connect()
        await link.close()

    with ConfiguredNats(tmp_path / "nats", tls_config(authority, verify=True)) as server:
        run(loop, main(server.url))


def test_who_wants_tls_does_not_talk_in_the_clear(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")

    async def main(server: NatsServer) -> None:
        for url, tls in ((server.url, client_tls(ca=authority.ca)), (server.url.replace("nats:", "tls:"), None)):
            link = NatsLink(LinkOptions(servers=(url,), name="t", tls=tls, connect_attempts=1))
            with pytest.raises(Unavailable, match="does not offer TLS"):
                await link.connect()
            await link.close()

    with ConfiguredNats(tmp_path / "nats", "") as server:
        run("asyncio", main(server))


# ── keys and files ───────────────────────────────────────────────────────────────────────────────


def test_a_key_is_what_its_description_says() -> None:
    pair = KeyPair("U")
    assert Nkey.from_seed(pair.seed).public == pair.public
    # from the documentation of nkeys
    known = Nkey.from_seed("SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY")
    assert known.public.startswith("U")
    assert pair.seed not in repr(Nkey.from_seed(pair.seed))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda seed: seed[:-3] + ("A" if seed[-3] != "A" else "B") + seed[-2:], "checksum"),
        (lambda seed: seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:], "checksum"),
        (lambda seed: seed[:-8], "bytes"),
        (lambda seed: seed + "1", "base32"),
        (lambda _seed: KeyPair("A").seed, "not a user's"),
        (lambda _seed: KeyPair("U").public, "bytes|not a seed"),
        (lambda _seed: "", "bytes"),
    ],
)
def test_a_seed_that_is_none_is_refused(spoil: object, problem: str) -> None:
    seed = KeyPair("U").seed
    assert callable(spoil)
    with pytest.raises(ValueError, match=problem) as refused:
        Nkey.from_seed(spoil(seed))
    assert seed not in str(refused.value)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing, empty, binary = tmp_path / "missing", tmp_path / "empty", tmp_path / "binary"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe\x00")
    damaged = tmp_path / "damaged"
    seed = KeyPair("U").seed
    damaged.write_text(seed[:30] + ("A" if seed[30] != "A" else "B") + seed[31:])
    for file in (missing, empty, binary, damaged):
        with pytest.raises(OperatorError, match=file.name):
            read_seed(file)
    half = tmp_path / "half"
    half.write_text(operator_config()[1].partition("****")[0])
    for file in (missing, empty, binary, half):
        with pytest.raises(OperatorError, match=file.name):
            read_creds(file)
    with pytest.raises(OperatorError, match="certificates"):
        client_tls(ca=missing)
    with pytest.raises(OperatorError, match="certificates"):
        client_tls(cert=empty, key=empty)


def test_a_broker_with_a_bad_file_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        link = NatsLink(LinkOptions(servers=("nats://127.0.0.1:1",), name="t", login=Login(creds=tmp_path / "none")))
        with pytest.raises(OperatorError, match="none"):
            await link.connect()

    run("asyncio", main())


def test_there_is_one_way_to_log_in() -> None:
    with pytest.raises(InvalidConfig, match="more than one way"):
        Login(user="a", token="b")


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(Login(user="a", password="s3cret"))
    assert "s3cret" not in repr(LinkOptions(servers=("x",), name="t", login=Login(token="s3cret")))
