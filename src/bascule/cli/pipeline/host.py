"""`bascule pipeline host`, `hosted`: runs several pipelines in one Spark, and shows, starts and stops them."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import Conf, Master, Pack, spark_conf
from bascule.cli.pipeline.run import ContextName, spec_of
from bascule.cli.pipeline.silent_spark import quiet_session
from bascule.cli.target.target import Json, Server
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say, show_json, show_rows
from bascule.errors import InvalidOption

SocketPath = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        help="The Unix socket of the host. Default: `bascule-pipelines.sock` in $XDG_RUNTIME_DIR, or in a folder of the user in /tmp.",
        show_default=False,
        metavar="PATH",
    ),
]


def socket_path(given: Path | None) -> Path:
    """The socket of the option, else the one of this user."""
    if given is not None:
        return given.absolute()
    folder = os.environ.get("XDG_RUNTIME_DIR") or f"{tempfile.gettempdir()}/bascule-{os.getuid()}"
    return Path(folder) / "bascule-pipelines.sock"


def host(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The files of pipelines that run until they are stopped.", show_default=False, metavar="FILE..."
        ),
    ] = None,
    socket: SocketPath = None,
    master: Master = None,
    pack: Pack = None,
    conf: Conf = None,
    server: Server = None,
    context: ContextName = None,
) -> None:
    """Run the pipelines of FILES in one Spark until it is stopped. A pipeline that fails does not end the others.

    `bascule pipeline run FILE --once --host` runs another pipeline in it, without starting a Spark; `bascule pipeline hosted` shows,
    starts and stops pipelines.
    """
    from bascule.pipeline.hosting.control import HostSocket
    from bascule.pipeline.hosting.host import SETTINGS, PipelineHost

    if master is not None and master.startswith("sc://"):
        raise InvalidOption(
            f"`--master` is `{master}`: a host has a Spark of its own",
            hint="start the host where the server of Spark Connect is, with the server's master",
        )
    settings = {**SETTINGS, **spark_conf(conf)}

    def load(file: Path) -> Any:
        return spec_of(file, server, context)[0]

    for file in files or ():
        load(file)  # a wrong file is refused before Spark starts
    with quiet_session("pipeline host", master, settings, pack) as spark:
        running = PipelineHost(spark, load, note)
        listening = HostSocket(running, socket_path(socket))
        listening.open()
        try:
            for file in files or ():
                running.start(file.absolute())
            say(f"Running {len(files or ())} pipelines; commands reach this host at {socket_path(socket)}.")
            _wait_for_signal()
        finally:
            listening.close()
            running.close()
            note("stopped; start it again to continue")


def _wait_for_signal() -> None:
    """Until SIGINT or SIGTERM."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hosted(
    start: Annotated[
        Path | None,
        typer.Option("--start", help="Start the pipeline of this file.", metavar="FILE", show_default=False),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", help="Stop this pipeline.", metavar="NAME", show_default=False)
    ] = None,
    socket: SocketPath = None,
    as_json: Json = False,
) -> None:
    """Show the pipelines of the running host, or start or stop one."""
    from bascule.pipeline.hosting.control import ask

    if start is not None and stop is not None:
        raise values.wrong("--stop", stop, "left out, or `--start`: one at a time")
    path = socket_path(socket)
    if start is not None:
        found = [ask(path, {"do": "start", "file": str(start.absolute())})["pipeline"]]
    elif stop is not None:
        found = [ask(path, {"do": "stop", "name": stop})["pipeline"]]
    else:
        found = ask(path, {"do": "status"})["pipelines"]
    if as_json:
        show_json(found)
        return
    columns = ("name", "state", "batches", "messages", "restarts", "error")
    show_rows([name.capitalize() for name in columns], [[one[name] for name in columns] for one in found])


def run_hosted(file: Path, socket: Path | None) -> None:
    """Run the pipeline once in the host, and print its summary."""
    from bascule.pipeline.hosting.control import ask

    found = ask(socket_path(socket), {"do": "once", "file": str(file.absolute())})["pipeline"]
    say(f"{found['name']}: {found['messages']} messages in {found['batches']} batches.")
