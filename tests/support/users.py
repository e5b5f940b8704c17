"""Users of a broker: static tokens in a file, and an OpenID provider of one's own."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bascule.security.identity import Identity
from bascule.security.token_file import add_token, create_token, remove_token, split_token

jwt: Any = import_module("jwt")

ISSUER = "https://id.example"
AUDIENCE = "bascule-test"


class TokenFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def create(self, user: str, *roles: str, expires_at: float | None = None) -> str:
        """The text of a new token of this user."""
        text, token = create_token(Identity(user, roles, expires_at))
        add_token(self.path, token)
        return text

    def revoke(self, text: str) -> None:
        parts = split_token(text)
        assert parts is not None
        remove_token(self.path, parts[0])


class Provider:
    """Signs JWTs; its key set is a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.write({"r1": self.rsa, "e1": self.ec})

    def write(self, keys: dict[str, Any]) -> None:
        self.path.write_text(self.document(keys))

    @staticmethod
    def document(keys: dict[str, Any]) -> str:
        listed = []
        for kid, key in keys.items():
            kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
            listed.append({**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
        return json.dumps({"keys": listed})

    def sign(self, user: str, *, algorithm: str = "RS256", kid: str = "r1", key: Any = None, **claims: Any) -> str:
        """A token of this user; a claim of None is left out."""
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": time.time() + 3600, **claims}
        payload = {name: value for name, value in given.items() if value is not None}
        signing = key if key is not None else self.ec if algorithm == "ES256" else self.rsa
        return str(jwt.encode(payload, signing, algorithm=algorithm, headers={"kid": kid}))

    def public_pem(self) -> bytes:
        return self.rsa.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def config(self) -> dict[str, Any]:
        return {
            "security.jwt.keys": str(self.path),
            "security.jwt.issuer": ISSUER,
            "security.jwt.audience": AUDIENCE,
            "security.jwt.roles.claim": "groups",
        }
