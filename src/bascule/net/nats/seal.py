"""Authenticated messages between brokers: every internal message carries a MAC under the cluster secret.

docs/internals/control-plane.md has the reasons. A sealed message:

    magic u16 (5E A1) · version u8 · sender size u8 · sender · boot (16 bytes) · counter u64 · MAC (16 bytes) · payload       big-endian

The sender is `<purpose>.<server id>`: each NATS connection of a broker is a channel of its own, whose messages NATS delivers in order.
`boot` is random for each channel object, `counter` rises with each message. The MAC is AES-128-GMAC over the subject, the reply subject
and the payload; its key is derived from the secret, the namespace, the sender and the boot, and its nonce is the counter.

A receiver accepts a counter once. It accepts messages of a boot only after the sender has answered a challenge with a fresh nonce: so a
recorded message is of no use, not even to a receiver that has just started, and no clock is involved.

    hello      H                    to `<namespace>.seal.<purpose>`             a channel has begun
    challenge  C · nonce            to `<namespace>.seal.<purpose>.<server>`    sent for a message of an unproven boot
    proof      P · the same nonce   to `<namespace>.seal.<purpose>.<challenger>`
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bascule import limits
from bascule.errors import BasculeError
from bascule.kernels.nats.protocol import CallbackSink
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import SEAL_HEAD as HEAD

BOOT_BYTES: Final = 16
MAC_BYTES: Final = 16
_COUNTER_BYTES: Final = 8
_FIXED_BYTES: Final = len(HEAD) + 1 + BOOT_BYTES + _COUNTER_BYTES + MAC_BYTES
SEAL_BYTES_MAX: Final = _FIXED_BYTES + 255
"""Size of a seal with the longest sender."""

WINDOW: Final = 64
"""Counters up to the highest one that a receiver still accepts, once each: a NATS cluster may deliver messages out of order."""
_WINDOW_MASK: Final = (1 << WINDOW) - 1

JOINED_BYTES_MAX: Final = 32 * limits.KIB
"""Larger payloads in several parts are authenticated part by part; below it, copying costs less than the calls."""

_HELLO: Final = b"H"
_CHALLENGE: Final = b"C"
_PROOF: Final = b"P"
_NONCE_BYTES: Final = 16
CHALLENGE_SECONDS: Final = 0.1
"""Minimum interval between challenges to one sender."""
NONCE_SECONDS: Final = 10.0
"""Time for which the same nonce is sent again. A proof that arrives later is of no use."""
COMPLAINT_SECONDS: Final = 5.0
"""Minimum interval between log messages about refused messages."""

_SCRYPT_COST: Final = 1 << 14

_logger = logging.getLogger(__name__)


class SealKeys:
    """The keys of a namespace, one for each cluster secret: the first signs, all verify."""

    def __init__(self, cluster_secrets: Sequence[str], namespace: str) -> None:
        salt = b"bascule control plane\0" + namespace.encode()
        self._keys = tuple(
            hashlib.scrypt(secret.encode(), salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=32) for secret in cluster_secrets
        )

    def ciphers(self, sender: bytes, boot: bytes) -> list[AESGCM]:
        """The ciphers of one channel's boot, one for each secret."""
        return [AESGCM(_derive(key, b"channel", sender, boot)) for key in self._keys]

    def signing_key(self, sender: bytes, boot: bytes) -> bytes:
        """The key with which a channel seals its messages."""
        return _derive(self._keys[0], b"channel", sender, boot)

    def audit_keys(self) -> list[bytes]:
        """The keys of audit records, one for each secret."""
        return [_derive(key, b"audit", b"", b"") for key in self._keys]

    def password(self) -> str:
        """The password of brokers at an embedded nats-server; it does not reveal the secret."""
        return _derive(self._keys[0], b"nats", b"", b"").hex()


def _derive(key: bytes, use: bytes, sender: bytes, boot: bytes) -> bytes:
    return hashlib.blake2b(boot + sender, digest_size=16, key=key, person=use.ljust(16, b"\0")).digest()


@dataclass(slots=True)
class SealStats:
    """Messages since the channel was created."""

    sealed: int = 0
    opened: int = 0
    unsealed: int = 0
    """Refused: they have no seal."""
    forged: int = 0
    """Refused: their MAC is wrong."""
    unproven: int = 0
    """Refused: their sender has not answered a challenge, which is normal for a moment when a broker starts."""
    replayed: int = 0
    """Refused: their counter was used before."""

    @property
    def refused(self) -> int:
        return self.unsealed + self.forged + self.unproven + self.replayed


class _Peer:
    """A channel of another broker that has proven its boot."""

    __slots__ = ("boot", "cipher", "high", "seen")

    def __init__(self, boot: bytes, cipher: AESGCM, counter: int) -> None:
        self.boot = boot
        self.cipher = cipher
        self.high = counter
        self.seen = _WINDOW_MASK
        """Bit n: the counter `high - n` was accepted, or was used before the proof."""

    def takes(self, counter: int) -> bool:
        """Whether the counter is new; it is not from now on."""
        ahead = counter - self.high
        if ahead > 0:
            self.seen = ((self.seen << ahead) | 1) & _WINDOW_MASK if ahead < WINDOW else 1
            self.high = counter
            return True
        if ahead <= -WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


@dataclass(slots=True)
class _Challenge:
    nonce: bytes
    created: float
    sent: float = 0.0


class SealedChannel:
    """Seals what one NATS connection of this broker sends, and opens what the same connections of other brokers send."""

    def __init__(
        self,
        keys: SealKeys,
        namespace: str,
        purpose: str,
        server_id: str,
        send: Callable[[bytes, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` publishes a payload to a subject. It may raise a BasculeError; the message is lost then."""
        self.stats = SealStats()
        self.on_accepted: Callable[[str], None] = _ignore
        """Called with a server id: that server accepts messages of this channel from now on, and may have dropped earlier ones."""
        self.hello_subject = f"{namespace}.seal.{purpose}".encode()
        self.own_subject = f"{namespace}.seal.{purpose}.{server_id}".encode()
        self._prefix = f"{namespace}.seal.".encode()
        self._purpose = purpose.encode() + b"."
        self._sender = self._purpose + server_id.encode()
        self._send = send
        self._clock = clock
        self._peers: dict[bytes, _Peer] = {}
        self._challenges: dict[bytes, _Challenge] = {}
        """By sender, until it has answered."""
        self._complained = -COMPLAINT_SECONDS
        self._keys = keys
        self._begin()

    @classmethod
    def over(cls, link: NatsLink, keys: SealKeys, namespace: str, purpose: str, server_id: str) -> SealedChannel:
        """A channel whose handshake uses this link."""
        channel = cls(keys, namespace, purpose, server_id, link.publish)
        for subject in (channel.hello_subject, channel.own_subject):
            link.subscribe(subject, CallbackSink(channel.on_handshake))
        return channel

    def use(self, keys: SealKeys) -> None:
        """Seal and verify with other secrets from now on."""
        self._keys = keys
        self._peers.clear()
        self._begin()
        self.hello()

    def _begin(self) -> None:
        boot = secrets.token_bytes(BOOT_BYTES)
        self._key = self._keys.signing_key(self._sender, boot)
        self._cipher = AESGCM(self._key)
        self._head = HEAD + bytes((len(self._sender),)) + self._sender + boot
        self._counter = 0
        # A server also receives what it sends to all servers, or to the controller when it is the controller itself.
        self._peers[self._sender] = _Peer(boot, self._cipher, 0)

    @property
    def seal_bytes(self) -> int:
        """Size of the seal in front of each payload."""
        return len(self._head) + _COUNTER_BYTES + MAC_BYTES

    # ── sealing and opening ──────────────────────────────────────────────────────────────────────

    def seal(self, subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
        """The seal of the payload, which follows it in the message."""
        self._counter += 1
        counter = self._counter.to_bytes(_COUNTER_BYTES, "big")
        self.stats.sealed += 1
        return self._head + counter + _mac(self._cipher, counter, subject, reply, payload)

    def seal_parts(self, subject: bytes, parts: Sequence[bytes | memoryview], size: int) -> bytes:
        """The seal of a payload of `size` bytes in several parts, which are not copied together if they are large."""
        if size < JOINED_BYTES_MAX:
            return self.seal(subject, b"".join(parts))
        self._counter += 1
        self.stats.sealed += 1
        counter = self._counter.to_bytes(_COUNTER_BYTES, "big")
        encryptor = Cipher(algorithms.AES(self._key), modes.GCM(_nonce(counter))).encryptor()
        for part in parts:
            encryptor.authenticate_additional_data(part)
        encryptor.update(_context(subject, b""))
        encryptor.finalize()
        return self._head + counter + encryptor.tag

    def open(self, subject: bytes, data: bytes, reply: bytes = b"") -> memoryview | None:
        """The payload of a message that another broker sent to this subject, once; None for any other message."""
        parts = _split(data)
        if parts is None:
            self.stats.unsealed += 1
            self._refuse("it has no seal", subject)
            return None
        sender, boot, counter, mac, payload = parts
        peer = self._peers.get(sender)
        if peer is None or peer.boot != boot:
            if self._cipher_of(parts, subject, reply) is None:
                self.stats.forged += 1
                self._refuse("its MAC is wrong", subject)
                return None
            self.stats.unproven += 1
            self._challenge(sender)
            return None
        if not hmac.compare_digest(_mac(peer.cipher, counter, subject, reply, payload), mac):
            self.stats.forged += 1
            self._refuse("its MAC is wrong", subject)
            return None
        if not peer.takes(int.from_bytes(counter, "big")):
            self.stats.replayed += 1
            self._refuse("it was received before", subject)
            return None
        self.stats.opened += 1
        return payload

    def _cipher_of(self, parts: _Parts, subject: bytes, reply: bytes) -> AESGCM | None:
        """The cipher with which the message was sealed."""
        sender, boot, counter, mac, payload = parts
        for cipher in self._keys.ciphers(sender, boot):
            if hmac.compare_digest(_mac(cipher, counter, subject, reply, payload), mac):
                return cipher
        return None

    def _refuse(self, reason: str, subject: bytes) -> None:
        now = self._clock()
        if now - self._complained >= COMPLAINT_SECONDS:
            self._complained = now
            _logger.warning(
                "a message on the internal subject %s was ignored: %s; %d so far",
                subject.decode(errors="replace"),
                reason,
                self.stats.refused,
            )

    # ── the handshake ────────────────────────────────────────────────────────────────────────────

    def hello(self) -> None:
        """Ask all brokers to challenge this channel now rather than at its first message."""
        self._publish(self.hello_subject, _HELLO)

    def on_handshake(self, subject: bytes, _reply: bytes, _headers: bytes | None, data: bytes) -> None:
        parts = _split(data)
        if parts is None:
            self.stats.unsealed += 1
            self._refuse("it has no seal", subject)
            return
        sender, boot, counter, _mac, payload = parts
        if sender == self._sender or not sender.startswith(self._purpose):
            return
        cipher = self._cipher_of(parts, subject, b"")
        if cipher is None:
            self.stats.forged += 1
            self._refuse("its MAC is wrong", subject)
            return
        kind, nonce = bytes(payload[:1]), bytes(payload[1:])
        peer = self._peers.get(sender)
        if kind == _PROOF:
            awaited = self._challenges.get(sender)
            if awaited is not None and hmac.compare_digest(awaited.nonce, nonce):
                del self._challenges[sender]
                self._peers[sender] = _Peer(boot, cipher, int.from_bytes(counter, "big"))
            return
        if peer is None or peer.boot != boot:
            self._challenge(sender)
        if kind == _CHALLENGE and len(nonce) == _NONCE_BYTES:
            self._publish(self._prefix + sender, _PROOF + nonce)
            self.on_accepted(sender[len(self._purpose) :].decode(errors="replace"))

    def _challenge(self, sender: bytes) -> None:
        now = self._clock()
        challenge = self._challenges.get(sender)
        if challenge is None and len(self._challenges) + len(self._peers) >= 2 * limits.RAFT_MEMBERS_MAX:
            return
        if challenge is None or now - challenge.created >= NONCE_SECONDS:
            challenge = self._challenges[sender] = _Challenge(secrets.token_bytes(_NONCE_BYTES), now)
        elif now - challenge.sent < CHALLENGE_SECONDS:
            return
        challenge.sent = now
        self._publish(self._prefix + sender, _CHALLENGE + challenge.nonce)

    def _publish(self, subject: bytes, payload: bytes) -> None:
        try:
            self._send(subject, self.seal(subject, payload) + payload)
        except BasculeError:
            return  # not connected: the next message of the other broker brings the next challenge


_Parts = tuple[bytes, bytes, bytes, bytes, memoryview]
"""Sender, boot, counter, MAC, payload."""


def _split(data: bytes) -> _Parts | None:
    if len(data) < _FIXED_BYTES or not data.startswith(HEAD):
        return None
    start = len(HEAD) + 1
    end = start + data[start - 1]
    if len(data) < _FIXED_BYTES + end - start:
        return None
    boot = end + BOOT_BYTES
    counter = boot + _COUNTER_BYTES
    mac = counter + MAC_BYTES
    return data[start:end], data[end:boot], data[boot:counter], data[counter:mac], memoryview(data)[mac:]


def _nonce(counter: bytes) -> bytes:
    return b"\0\0\0\0" + counter


def _context(subject: bytes, reply: bytes) -> bytes:
    return subject + b" " + reply


def _mac(cipher: AESGCM, counter: bytes, subject: bytes, reply: bytes, payload: bytes | memoryview) -> bytes:
    # Subjects have no spaces, so that the place of the space is certain. GCM authenticates both of its inputs; the payload is the
    # one that it does not encrypt.
    return cipher.encrypt(_nonce(counter), _context(subject, reply), payload)[-MAC_BYTES:]


def _ignore(*_: object) -> None:
    """Default callback."""
