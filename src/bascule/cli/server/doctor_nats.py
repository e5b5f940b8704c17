"""Checks of a NATS server from the outside: whether it answers, and whether this client can use the internal subjects of a cluster."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from bascule.cli.terminal.finding import FAILED, OK, SKIPPED, WARNING, Check
from bascule.config.values.shown import milliseconds
from bascule.errors import BasculeError
from bascule.kernels.nats.protocol import CallbackSink
from bascule.net.nats.link import LinkOptions, NatsLink
from bascule.net.nats.subjects import SEAL_HEAD, ControlSubjects

LISTEN_SECONDS: Final = 1.0
"""Time to receive messages between brokers, which send heartbeats several times a second."""
_WRONG_ADDRESS: Final = "start nats-server there, or correct the address"


async def look(url: str | None, namespace: str, timeout: float) -> list[Check]:
    if url is None:
        return [Check("nats", SKIPPED, "no address given: `--nats nats://HOST:4222`")]
    link = None
    try:
        link = NatsLink(
            LinkOptions(servers=(url,), name="bascule doctor", connect_attempts=1, connect_seconds_max=timeout)
        )
        started = time.monotonic()
        await link.connect()
        await link.flush(timeout)
        seconds = time.monotonic() - started
        size = link.max_payload
        answers = Check("nats", OK, f"answers in {milliseconds(seconds)}, accepts messages of up to {size:,} bytes")
        return [answers, await _internal_subjects(link, namespace, timeout)]
    except BasculeError as error:
        return [Check("nats", FAILED, error.message, error.hint or _WRONG_ADDRESS)]
    except TimeoutError:
        return [Check("nats", FAILED, f"{url} does not answer", _WRONG_ADDRESS)]
    finally:
        if link is not None:
            await link.close()


async def _internal_subjects(link: NatsLink, namespace: str, timeout: float) -> Check:
    """Try what an attacker would: publish and subscribe below the namespace. The probe means nothing to a broker."""
    name, subjects = "internal subjects", ControlSubjects(namespace)
    probe = f"{namespace}.doctor.{secrets.token_hex(8)}".encode()
    probes: list[bytes] = []
    between_brokers: list[bytes] = []
    link.subscribe(probe, CallbackSink(lambda _to, _reply, _headers, data: probes.append(data)))
    link.subscribe(
        subjects.raft("*").encode(), CallbackSink(lambda _to, _reply, _headers, data: between_brokers.append(data))
    )
    await link.flush(timeout)
    link.publish(probe, b"probe")
    await link.flush(timeout)
    if link.stats.errors >= 2 and not probes:
        return Check(name, OK, f"this client can neither publish nor subscribe to `{namespace}.>`")
    await asyncio.sleep(LISTEN_SECONDS)
    keep = f"let the NATS servers keep `{namespace}.>` to an account or user of the brokers"
    if not between_brokers:
        return Check(
            name,
            WARNING,
            f"this client can publish or subscribe to `{namespace}.>`",
            f"set `cluster.secret`, and {keep}",
        )
    if all(data.startswith(SEAL_HEAD) for data in between_brokers):
        return Check(
            name, WARNING, f"this client can read `{namespace}.>`; brokers ignore what it publishes there", keep
        )
    return Check(
        name,
        WARNING,
        f"this client can publish to `{namespace}.>`, and the brokers have no `cluster.secret`: it can control the cluster",
        f"set `cluster.secret` on all brokers, or {keep}",
    )
