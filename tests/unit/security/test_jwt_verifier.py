"""JSON Web Tokens: which are believed, and what a set of keys does when it changes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from bascule import limits
from bascule.config.sections.security import Jwt
from bascule.errors import InvalidConfig, Unauthenticated, Unavailable
from bascule.security.identity import Identity
from bascule.security.jwt_verifier import JwtVerifier
from bascule.security.key_set import KeySet
from tests.support.users import AUDIENCE, ISSUER, Provider


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return Provider(tmp_path_factory.mktemp("provider") / "keys.json")


def verifier(provider: Provider, **changed: Any) -> JwtVerifier:
    settings = {"issuer": ISSUER, "audience": AUDIENCE, "keys": str(provider.path), "roles_claim": "groups", **changed}
    return JwtVerifier(Jwt(**settings), KeySet(str(provider.path), None, 600.0))


@pytest.mark.parametrize(("algorithm", "kid"), [("RS256", "r1"), ("PS512", "r1"), ("ES256", "e1")])
def test_a_good_token_names_the_user_and_the_roles(provider: Provider, algorithm: str, kid: str) -> None:
    expiry = int(time.time()) + 60
    token = provider.sign("alice", algorithm=algorithm, kid=kid, groups=["writers", "admin"], exp=expiry)
    assert verifier(provider).verify(token) == Identity("alice", ("writers", "admin"), expiry + 30.0)


def test_claims_can_have_other_names_and_users_a_prefix(provider: Provider) -> None:
    token = provider.sign("ignored", email="a@b.example", scope="read write")
    one = verifier(provider, user_claim="email", user_prefix="oidc:", roles_claim="scope").verify(token)
    assert (one.name, one.roles) == ("oidc:a@b.example", ("read", "write"))


def test_the_clock_may_differ_by_the_leeway(provider: Provider) -> None:
    token = provider.sign("alice", exp=time.time() - 20, nbf=time.time() - 60)
    assert verifier(provider).verify(token).name == "alice"
    with pytest.raises(Unauthenticated, match="expired"):
        verifier(provider, leeway_ns=0).verify(token)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"aud": "another service"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"nbf": 4_000_000_000},
        {"sub": None},
        {"sub": 7},
        {"sub": ""},
        {"sub": "role:admin"},
        {"sub": "two words"},
        {"sub": "x" * 300},
        {"groups": {"admin": True}},
        {"groups": ["role:admin"]},
        {"groups": [f"r{number}" for number in range(100)]},
    ],
)
def test_a_token_with_other_claims_is_refused(provider: Provider, claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        verifier(provider).verify(provider.sign("alice", **claims))


def forged(header: dict[str, Any], signature: bytes = b"", key: bytes | None = None) -> str:
    body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 3600}
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, body)]
    if key is not None:
        signature = hmac.digest(key, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_forged_tokens_are_refused(provider: Provider) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    tokens = [
        forged({"alg": "none", "kid": "r1"}),
        forged({"alg": "None", "typ": "JWT"}),
        forged({"alg": "HS256", "kid": "r1"}, key=provider.public_pem()),  # the public key as an HMAC secret
        forged({"alg": "RS256", "kid": "r1"}, signature=bytes(256)),
        forged({"alg": "ES256", "kid": "r1"}, signature=bytes(64)),
        forged({"alg": "ES256", "kid": "e1"}, signature=bytes(64)),  # CVE-2022-21449: r = s = 0
        forged({"alg": "RS256", "kid": "../../etc/passwd"}),
        forged({"alg": "RS256", "jku": "http://127.0.0.1:1/keys", "kid": "x"}),
        provider.sign("alice", key=stranger),
        provider.sign("alice")[:-4],
        "a.b.c",
        "",
        "." * 8000,
    ]
    for token in tokens:
        with pytest.raises(Unauthenticated):
            verifier(provider).verify(token)


def test_symmetric_keys_of_a_set_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"}]}))
    with pytest.raises(InvalidConfig, match="no public key"):
        KeySet(str(file), None, 600.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 7}', '{"keys": []}', '{"keys": [7, {}, {"kty": "RSA"}]}'])
def test_a_file_without_keys_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match="keys"):
        KeySet(str(file), None, 600.0)


@pytest.mark.parametrize("url", ["http://id.example/keys", "ftp://id.example/keys", "file:///etc/passwd", "https://"])
def test_keys_come_over_https_alone(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"security\.jwt\.keys"):
        KeySet(url, None, 600.0)


class KeyServer:
    """Serves a key set over HTTP on loopback, and counts requests."""

    def __init__(self, body: str) -> None:
        self.body, self.status, self.requests = body, 200, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(outer.status)
                if outer.status == 302:
                    self.send_header("Location", f"{outer.url}/other")
                self.end_headers()
                self.wfile.write(outer.body.encode())

            def log_message(self, *_arguments: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def key_server(provider: Provider) -> Iterator[KeyServer]:
    served = KeyServer(provider.document({"r1": provider.rsa}))
    yield served
    served.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_keys_are_fetched_once_and_again_when_they_are_old(key_server: KeyServer) -> None:
    clock = Clock()
    keys = KeySet(key_server.url, None, 600.0, clock)
    assert key_server.requests == 0
    for _ in range(5):
        assert keys.key("r1") is not None
    assert key_server.requests == 1
    clock.now += 601
    assert keys.key("r1") is not None
    assert key_server.requests == 2


def test_forged_key_ids_cause_few_fetches(key_server: KeyServer, provider: Provider) -> None:
    clock = Clock()
    keys = KeySet(key_server.url, None, 600.0, clock)
    for number in range(100):
        assert keys.key(f"forged {number}") is None
    assert key_server.requests == 1
    key_server.body = provider.document({"r1": provider.rsa, "new": provider.ec})
    clock.now += limits.JWKS_COOLDOWN_SECONDS
    assert keys.key("new") is not None
    assert key_server.requests == 2


@pytest.mark.parametrize(
    ("status", "body"), [(500, ""), (302, ""), (200, "nonsense"), (200, " " * (limits.JWKS_BYTES_MAX + 1))]
)
def test_keys_stay_in_use_while_their_server_fails(key_server: KeyServer, status: int, body: str) -> None:
    clock = Clock()
    keys = KeySet(key_server.url, None, 600.0, clock)
    assert keys.key("r1") is not None
    key_server.status, key_server.body = status, body
    clock.now += 1000
    assert keys.key("r1") is not None
    never = KeySet(key_server.url, None, 600.0, clock)
    with pytest.raises(Unavailable, match="could not be fetched"):
        never.key("r1")
