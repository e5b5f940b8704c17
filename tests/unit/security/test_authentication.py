"""The identity of a call: verified once, in a thread, and bounded for addresses that guess."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Unauthenticated, Unavailable
from bascule.net.grpc.server import Peer
from bascule.security.attempts import FailedAttempts, network_of
from bascule.security.authentication import Authenticator
from bascule.security.authorization import Authorizer
from bascule.security.identities import Identities
from bascule.security.identity import Identity
from bascule.security.running_calls import RunningCalls
from tests.support.users import TokenFile

HERE, THERE = "192.0.2.1:5", "192.0.2.2:6"


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens")


class Hashing:
    """Counts hashes and the threads that compute them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.threads: set[str] = set()
        real = hashlib.scrypt

        def counted(*arguments: Any, **options: Any) -> bytes:
            self.count += 1
            self.threads.add(threading.current_thread().name)
            return real(*arguments, **options)

        monkeypatch.setattr(hashlib, "scrypt", counted)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    yield Hashing(monkeypatch)


async def ask(
    authenticator: Authenticator, token: str | None, address: str = HERE, name: str | None = None
) -> Identity:
    found = authenticator.identify(address, name, None if token is None else f"Bearer {token}")
    return found if isinstance(found, Identity) else await found


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_token_is_hashed_once_and_never_on_the_event_loop(tokens: TokenFile, hashing: Hashing) -> None:
    text = tokens.create("alice", "writers")
    hashing.count = 0
    hashing.threads.clear()

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        first = await asyncio.gather(*(ask(authenticator, text) for _ in range(20)))
        assert {(one.name, one.roles) for one in first} == {("alice", ("writers",))}
        assert isinstance(authenticator.identify(THERE, None, f"bearer  {text}"), Identity)
        authenticator.close()

    run(work())
    assert hashing.count == 1
    assert all(name.startswith("verify tokens") for name in hashing.threads)


def test_unknown_ids_cost_no_hash(tokens: TokenFile, hashing: Hashing) -> None:
    tokens.create("alice")
    hashing.count = 0

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        for text in ("bascule_0123456789ab_" + "0" * 64, "a.b.c", "x"):
            with pytest.raises(Unauthenticated, match="unknown"):
                await ask(authenticator, text)
        authenticator.close()

    run(work())
    assert hashing.count == 0


def test_guessing_is_bounded_per_address_and_others_go_on(tokens: TokenFile, hashing: Hashing) -> None:
    text, fresh = tokens.create("alice"), tokens.create("bob")
    number = text.split("_")[1]
    hashing.count = 0

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        assert (await ask(authenticator, text)).name == "alice"
        refusals = []
        for guess in range(50):
            with pytest.raises(Unauthenticated) as caught:
                await ask(authenticator, f"bascule_{number}_{guess:064x}", "192.0.2.1:7")
            refusals.append(caught.value.message)
        assert "too many failed attempts" in refusals[-1]
        assert (await ask(authenticator, text)).name == "alice", "a verified token goes on at the same address"
        with pytest.raises(Unauthenticated, match="too many"):
            await ask(authenticator, fresh)
        assert (await ask(authenticator, fresh, THERE)).name == "bob"
        assert (await ask(authenticator, fresh)).name == "bob", "verified elsewhere"
        authenticator.close()

    run(work())
    assert hashing.count <= limits.TOKEN_FAILURES_MAX + 4


def test_the_same_wrong_token_is_hashed_once(tokens: TokenFile, hashing: Hashing) -> None:
    wrong = f"bascule_{tokens.create('alice').split('_')[1]}_{0:064x}"
    hashing.count = 0

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        for _ in range(30):
            with pytest.raises(Unauthenticated, match="wrong"):
                await ask(authenticator, wrong)
        authenticator.close()

    run(work())
    assert hashing.count == 1


def test_a_queue_of_verifications_is_bounded(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKEN_VERIFICATIONS_WAITING_MAX", 3)
    texts = [tokens.create(f"user{number}") for number in range(5)]

    async def work() -> list[Identity | BaseException]:
        authenticator = Authenticator(tokens.path, None, None)
        found = await asyncio.gather(*(ask(authenticator, text) for text in texts), return_exceptions=True)
        authenticator.close()
        return found

    found = run(work())
    assert [type(one) for one in found] == [Identity] * 3 + [Unavailable] * 2


def test_tokens_expire_and_are_revoked_by_a_reload(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    old, short, text = (
        tokens.create("old", expires_at=1e9),
        tokens.create("s", expires_at=time.time() + 3600),
        tokens.create("a"),
    )

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        with pytest.raises(Unauthenticated, match="expired"):
            await ask(authenticator, old)
        assert (await ask(authenticator, text)).name == "a"
        assert (await ask(authenticator, short)).name == "s"
        tokens.revoke(text)
        assert (await ask(authenticator, text)).name == "a", "until the reload"
        assert authenticator.reload()
        with pytest.raises(Unauthenticated, match="revoked"):
            await ask(authenticator, text)
        tokens.path.write_text("nonsense\n")
        assert not authenticator.reload()
        later = time.time() + 3601
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(Unauthenticated, match="expired"):
            await ask(authenticator, short)
        authenticator.close()

    run(work())


def test_calls_in_progress_end_when_their_token_is_revoked_changed_or_expired(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("kept", "revoked", "changed", "short")
    texts = {name: tokens.create(name, expires_at=time.time() + 3600 if name == "short" else None) for name in names}

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        identities = Identities(authenticator)
        authorizer = Authorizer(None, identities.is_current)
        running, ended = RunningCalls(authorizer), []
        for name, text in texts.items():
            peer = await identities.of_request(Peer(HERE), f"Bearer {text}")
            assert authorizer.allows(peer, "s", "Subscribe")
            running.begin(peer, "s", "Subscribe", lambda _text, name=name: ended.append(name))  # type: ignore[misc]
        machine = Peer(HERE, "machine")
        running.begin(machine, "s", "Subscribe", lambda _text: ended.append("machine"))
        tokens.revoke(texts["revoked"])
        tokens.path.write_text(tokens.path.read_text().replace(" changed -", " changed admin"))
        running.judge_credentials()
        assert ended == [], "until the reload"
        authenticator.reload()
        before = authorizer.generation
        running.judge_credentials()
        assert set(ended) == {"revoked", "changed"} and authorizer.generation > before
        later = time.time() + 3601
        monkeypatch.setattr(time, "time", lambda: later)
        running.judge_credentials()
        assert set(ended) == {"revoked", "changed", "short"} and len(running) == 2
        authenticator.close()

    run(work())


def test_a_certificate_is_an_identity_and_a_token_counts_more(tokens: TokenFile) -> None:
    text = tokens.create("alice")

    async def work() -> None:
        authenticator = Authenticator(tokens.path, None, None)
        assert (await ask(authenticator, None, name="machine")).name == "machine"
        assert (await ask(authenticator, text, name="machine")).name == "alice"
        for token, name in ((None, None), (None, ""), ("wrong", "machine"), (None, "role:admin")):
            with pytest.raises(Unauthenticated):
                await ask(authenticator, token, name=name)
        for header in ("", "Basic YTpi", "Bearer", "Bearer ", "Bearer \u00e4", "Bearer " + "x" * 9000):
            with pytest.raises(Unauthenticated):
                authenticator.identify(HERE, "machine", header)
        authenticator.close()

    run(work())


def test_failed_attempts_come_back_with_time_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    attempts = FailedAttempts(lambda: now[0])
    for _ in range(limits.TOKEN_FAILURES_MAX):
        assert attempts.seconds_to_wait(HERE) == 0
        attempts.note(HERE)
    assert 0 < attempts.seconds_to_wait(HERE) <= limits.TOKEN_FAILURE_SECONDS
    now[0] += limits.TOKEN_FAILURE_SECONDS
    assert attempts.seconds_to_wait(HERE) == 0
    monkeypatch.setattr(limits, "TOKEN_ADDRESSES_MAX", 10)
    for number in range(100):
        attempts.note(f"198.51.100.{number}:1")
    assert len(attempts._spent) <= 10


def test_an_address_is_an_ip_or_a_64_network() -> None:
    assert network_of("192.0.2.1:5") == "192.0.2.1"
    assert network_of("[2001:db8::1]:5") == network_of("[2001:db8::ffff]:6") == "2001:db8::/64"
    assert network_of("local") == "local"
