"""A server that is nothing but a controller, to be killed: `python -m tests.chaos.raft.controller_process OPTIONS-AS-JSON`.

It answers requests on `<namespace>.test.<id>`: create, delete or look for a stream, or tell who leads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bascule.errors import BasculeError, OutcomeUnknown
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, DeleteStream
from bascule.metadata.start import ControllerStart, start_controller
from bascule.net.nats.bus import NatsBus

VERDICTS = {"ALREADY_EXISTS": "exists", "NOT_FOUND": "missing"}


async def answer(controller: Controller, call: str, name: str) -> str | None:
    """What the call gave; None when nobody knows."""
    try:
        if call == "look":
            return "present" if name in (await controller.fresh_metadata()).streams else "absent"
        brokers = tuple(BrokerPlace(member) for member in controller.members) or (BrokerPlace("a"),)
        op = CreateStream(name, "subject", 1, 1, brokers, 0) if call == "create" else DeleteStream(name)
        refusal = await controller.submit(op)
    except OutcomeUnknown:
        return None
    except BasculeError as error:
        return f"error: {error.message}"
    return VERDICTS[refusal.code] if refusal else {"create": "created", "delete": "deleted"}[call]


def status(controller: Controller) -> dict[str, Any]:
    node = controller.driver.node
    membership = node.membership
    return {
        "leader": node.leader,
        "is_leader": node.is_leader,
        "voters": sorted(membership.voters),
        "learners": sorted(membership.learners),
        "applied": node.applied_index,
        "snapshot": node.snapshot.index,
        "streams": sorted(controller.metadata.streams),
    }


async def main(given: dict[str, Any]) -> None:
    bus = await NatsBus.connect([given.pop("nats")], given["server_id"])
    directory = given.pop("directory")
    options = ControllerStart(**{**given, "peers": tuple(given.get("peers", ()))})
    rivals: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
    controller = await start_controller(
        bus, PosixDisk(), directory, options, on_rival_seed=lambda rival, yields: rivals.put_nowait((rival, yields))
    )

    async def on_request(data: bytes, reply: str) -> None:
        request = json.loads(data)

        async def work() -> None:
            if request["call"] == "status":
                result: Any = status(controller)
            else:
                result = await answer(controller, request["call"], request["name"])
            await bus.publish(reply, json.dumps(result).encode())

        tasks.add(task := asyncio.create_task(work()))
        task.add_done_callback(tasks.discard)

    tasks: set[asyncio.Task[None]] = set()
    await bus.subscribe(f"{options.namespace}.test.{options.server_id}", on_request)
    while True:
        rival, yields = await rivals.get()
        if yields:
            print(f"another seed is there: {rival}", flush=True)
            sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
