"""Recognises a Liftbridge cluster in the namespace of this broker, and leaves it alone.

Two clusters in one namespace would store each other's cursors and events. The broker asks once, before it publishes anything else in
the namespace, and does not start if a Liftbridge server answers. The request is the survey that Liftbridge servers send to each other;
it changes nothing. Brokers do not listen on its subject, so NATS answers at once that there is no listener. Later the broker listens
for Liftbridge servers that start in its namespace, and logs them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from bascule import limits
from bascule.config.values.address import Address
from bascule.errors import OperatorError, RejectedEnvelope
from bascule.kernels.nats.protocol import CallbackSink
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import RaftJoinRequest, ServerInfoRequest, ServerInfoResponse

_logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
"""Time for an answer if the subject has a listener."""
NAMED_MAX: Final = 16
"""Liftbridge servers that are named in the log; further ones are ignored."""
_NO_LISTENER: Final = b"NATS/1.0 503"


async def refuse_foreign_namespace(link: NatsLink, namespace: str, server_id: str) -> None:
    """Raise OperatorError if a Liftbridge server uses the namespace."""
    subjects = ControlSubjects(namespace)
    inbox = f"{subjects.inbox}.{secrets.token_hex(11)}".encode()
    answers: asyncio.Future[tuple[bytes | None, bytes]] = asyncio.get_running_loop().create_future()

    def take(_subject: bytes, _reply: bytes, headers: bytes | None, payload: bytes) -> None:
        if not answers.done():
            answers.set_result((headers, payload))

    sid = link.subscribe(inbox, CallbackSink(take))
    try:
        request = pack_message(MessageType.SERVER_INFO_REQUEST, ServerInfoRequest(id=server_id))
        link.publish(subjects.liftbridge_info.encode(), request, inbox)
        headers, payload = await asyncio.wait_for(answers, ANSWER_SECONDS)
    except TimeoutError:
        return  # a listener that answers nothing, such as `nats sub '>'`
    finally:
        link.unsubscribe(sid)
    if headers is not None and headers.startswith(_NO_LISTENER) and not payload:
        return
    try:
        found = unpack_message(ServerInfoResponse, payload, MessageType.SERVER_INFO_RESPONSE)
    except RejectedEnvelope:
        return
    raise OperatorError(
        f"a Liftbridge cluster uses the namespace `{namespace}` on this NATS: its server `{_printable(found.id)}` answers, "
        f"at {Address(_printable(found.host), found.port)}",
        hint="set `clustering.namespace` to a name of its own on all brokers of this cluster; "
        "see docs/guides/moving-from-liftbridge.md",
    )


class ForeignWatch:
    """Logs the Liftbridge servers that start in the namespace of this broker. They get no answer."""

    def __init__(self, link: NatsLink, namespace: str) -> None:
        self._namespace = namespace
        self._named: set[str] = set()
        subjects = ControlSubjects(namespace)
        link.subscribe(subjects.liftbridge_bootstrap.encode(), CallbackSink(self._on_seed))
        link.subscribe(subjects.liftbridge_join.encode(), CallbackSink(self._on_join))

    def _on_seed(self, _subject: bytes, _reply: bytes, _headers: bytes | None, payload: bytes) -> None:
        if 0 < len(payload) <= 4 * limits.NAME_CHARACTERS_MAX:
            self._log(payload.decode("utf-8", "replace"))

    def _on_join(self, _subject: bytes, _reply: bytes, _headers: bytes | None, payload: bytes) -> None:
        try:
            self._log(unpack_message(RaftJoinRequest, payload, MessageType.RAFT_JOIN_REQUEST).node_id)
        except RejectedEnvelope:
            return

    def _log(self, server: str) -> None:
        name = _printable(server)
        if name not in self._named and len(self._named) < NAMED_MAX:
            self._named.add(name)
            _logger.error(
                "the Liftbridge server `%s` was started in the namespace `%s` of this cluster: stop it and give it another one; until "
                "then both clusters store each other's cursors, and no broker of this cluster can be restarted",
                name,
                self._namespace,
            )


def _printable(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return shown[: limits.NAME_CHARACTERS_MAX]
