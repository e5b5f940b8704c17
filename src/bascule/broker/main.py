"""`bascule server` and `bascule-server`: one broker in one process, until a signal ends it.

SIGTERM and SIGINT stop it gracefully: its leaderships are handed over first; a second signal skips that. SIGHUP makes it read its
authorization policy and its certificate again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bascule import __version__
from bascule.broker.exhaustion import end_when_exhausted
from bascule.broker.logs import set_up_logging
from bascule.config import Loaded, load_with_sources
from bascule.config.sections.server import KEYS, ServerConfig
from bascule.config.values.key import Key
from bascule.config.values.kinds import Boolean, Names, NatsServers
from bascule.exits import run_to_the_end
from bascule.net.listening import take_listening_socket

if TYPE_CHECKING:
    from bascule.broker.broker import RunningBroker
    from bascule.broker.ending import BrokerEnding

_logger = logging.getLogger(__name__)


def main() -> None:
    run_to_the_end(lambda: _serve(sys.argv[1:]))


def _serve(arguments: Sequence[str]) -> None:
    os.umask(0o077)  # also for what nats-server and libraries create
    loaded = _loaded(arguments)
    set_up_logging(loaded.config.logging)
    for warning in loaded.warnings:
        _logger.warning("%s", warning)
    listening = take_listening_socket(loaded.config.listener.bind())
    config = with_stored_namespace(loaded)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(config, listening))


def parse(arguments: Sequence[str]) -> tuple[ServerConfig, tuple[str, ...]]:
    """The configuration from the command line, the file that it names, the environment and the data directory; and its warnings."""
    loaded = _loaded(arguments)
    return with_stored_namespace(loaded), loaded.warnings


def _loaded(arguments: Sequence[str]) -> Loaded:
    parser = _parser()
    given = vars(parser.parse_args(_with_two_dashes(arguments, parser)))
    file = given.pop("config")
    return load_with_sources(file, given)


def _with_two_dashes(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The arguments with `--name` for `-name`, which Go's programs accept. argparse would read `-config` as `-c onfig`."""
    known = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    return [f"-{one}" if f"-{one.partition('=')[0]}" in known else one for one in arguments]


def with_stored_namespace(loaded: Loaded) -> ServerConfig:
    """The configuration with the namespace of its data directory, unless the namespace is configured."""
    # Imported while the port listens already, as in `run`.
    from bascule.log.disk.operations import PosixDisk
    from bascule.metadata.namespace import FORMER_DEFAULT, stored_namespace

    config = loaded.config
    if any(one.key.name == "clustering.namespace" and one.source != "default" for one in loaded.settings):
        return config
    disk, former = PosixDisk(), _in_namespace(config, FORMER_DEFAULT)
    stored = stored_namespace(disk, str(config.data_dir))
    if stored is None and stored_namespace(disk, str(former.data_dir)) is not None:
        return former  # the default directory has the default namespace in its name
    return config if stored is None else _in_namespace(config, stored)


def _in_namespace(config: ServerConfig, namespace: str) -> ServerConfig:
    # The directory stays where it is configured; the default one is named after the namespace.
    cluster = replace(config.cluster, replication=replace(config.cluster.replication, namespace=namespace))
    return replace(config, cluster=cluster)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bascule server",
        description="Run a broker. Every configuration key can also be set in a file (-c) or in the environment: "
        "see `bascule config reference`.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="version", version=f"bascule {__version__}")
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file, YAML")
    for key in KEYS.values():
        if key.flags:
            parser.add_argument(*key.flags, dest=key.name, help=_help(key), **_action(key))
    return parser


def _help(key: Key) -> str:
    return f"{key.meaning} [{key.name}]".replace("%", "%%")


def _action(key: Key) -> dict[str, Any]:
    if isinstance(key.kind, Boolean):
        return {"nargs": "?", "const": "true", "metavar": "true|false"}
    if isinstance(key.kind, Names | NatsServers):
        return {"action": "append", "metavar": "NAME"}
    return {"metavar": key.name.rpartition(".")[2].upper()}


def loop_factory() -> Any:
    """uvloop if it is installed; it is faster."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def run(config: ServerConfig, listening: socket.socket) -> None:
    """Serve until a signal, an operator's call or a failure ends the broker."""
    # Imported while the port listens already: the parts take half a second.
    from bascule.broker.broker import start_broker
    from bascule.broker.ending import BrokerEnding

    ending, hurry = BrokerEnding(), asyncio.Event()
    loop = asyncio.get_running_loop()
    end_when_exhausted(loop)

    def on_signal() -> None:
        (hurry if ending.requested.is_set() else ending.requested).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    waiting = loop.create_task(ending.requested.wait())
    starting = loop.create_task(start_broker(config, ending, listening))
    loop.add_signal_handler(signal.SIGHUP, lambda: starting.add_done_callback(_reload))
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        await _serve_until(starting.result(), ending, waiting, hurry)
    finally:
        waiting.cancel()


def _reload(starting: asyncio.Task[RunningBroker]) -> None:
    """SIGHUP during the start takes effect at its end."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().reload()


async def _serve_until(
    broker: RunningBroker, ending: BrokerEnding, requested: asyncio.Task[Any], hurry: asyncio.Event
) -> None:
    try:
        failing = asyncio.create_task(ending.failed())
        await asyncio.wait({failing, requested}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        failing.cancel()
        _logger.info("stopping")
        await _unless(hurry, broker.drain())
    finally:
        await broker.stop()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; cancel it when the event occurs."""
    tasks: set[asyncio.Task[Any]] = {asyncio.create_task(work), asyncio.create_task(event.wait())}
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for task in done:
        task.result()
