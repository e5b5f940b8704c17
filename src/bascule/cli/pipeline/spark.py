"""`bascule spark shell`, `pack`: an interactive Python with a Spark session, and what executors of a cluster need."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import Conf, Pack, spark_conf
from bascule.cli.target.target import Target, connected
from bascule.cli.terminal.output import note, say
from bascule.config.values.shown import plural, size

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(help="Run Spark with streams as a data source.", no_args_is_help=True)

BANNER = """\
Spark {version}, brokers at {server}

    stream("orders")                          a stream as a table, to query in batch
    stream("orders").groupBy("key").count().show()
    spark.readStream.format("bascule")…       everything else, `servers` is {server}
"""


@app.callback()
def options() -> None:
    """Run Spark with streams as a data source."""


@app.command()
@connected
def shell(
    target: Target,
    master: Annotated[
        str | None,
        typer.Option(
            help="Where Spark runs: `local[4]`, `spark://host:7077`, `sc://host:15002`. Default: on this machine.",
            show_default=False,
        ),
    ] = None,
    pack: Pack = None,
    conf: Conf = None,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="CODE", help="Run this code, then exit.", show_default=False),
    ] = None,
) -> None:
    """Start Python, or IPython if installed, with a session `spark` and a function `stream(name)`. In a pipe it runs its input."""
    from bascule.spark import session

    spark = session("bascule shell", master, pack=pack, **spark_conf(conf))
    try:
        names = {"spark": spark, "stream": _stream(spark, target), "servers": target.server}
        if command is not None:
            _run(command, names)
        elif not sys.stdin.isatty():
            _run(sys.stdin.read(), names)
        else:
            _interact(BANNER.format(version=spark.version, server=target.server), names)
    finally:
        spark.stop()


@app.command("pack")
def write(
    file: Annotated[
        Path,
        typer.Argument(help="The archive to write: a name that ends in `.tar.gz`.", metavar="FILE", dir_okay=False),
    ] = Path("deps.tar.gz"),
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add", metavar="NAME", help="Pack another installed package too; may be repeated.", show_default=False
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: check whether FILE is right for this Python and Bascule.")
    ] = False,
) -> None:
    """Pack what executors of a cluster need: Bascule with its compiled modules, and the packages that it needs."""
    from bascule.spark.executors.pack import check_pack, write_pack

    found = check_pack(file) if check else write_pack(file, add or ())
    size_bytes = file.stat().st_size
    say(
        f"{file}: Bascule {found.bascule} and {plural(len(found.packages), 'package')} for {found.python} on {found.platform} "
        f"({found.libc}), {size(size_bytes)}"
    )
    if not check:
        note(f"next: `bascule pipeline run FILE --master spark://HOST:7077 --pack {file}`")


def _stream(spark: Any, target: Target) -> Callable[..., Any]:
    """The function `stream` of the shell, with the connection of this command."""
    context = target.context
    given = {
        "servers": target.server,
        "tls": "true" if target.speaks_tls else None,
        "tlsCa": context.tls_ca,
        "tlsCert": context.tls_cert,
        "tlsKey": context.tls_key,
        "token": target.client_options()["token"],
    }
    connection = {name: value for name, value in given.items() if value}

    def stream(name: str, **more: Any) -> Any:
        """A stream as a DataFrame; `more` are options of a batch read."""
        return spark.read.format("bascule").options(**connection, stream=name, **more).load()

    return stream


def _run(text: str, names: dict[str, Any]) -> None:
    try:
        exec(compile(text, "<command>", "exec"), names)
    except Exception:  # an error of the user's code: show its traceback
        traceback.print_exc()
        raise typer.Exit(1) from None


def _interact(banner: str, names: dict[str, Any]) -> None:
    try:
        from IPython import start_ipython
    except ImportError:
        import code

        code.interact(banner, local=names, exitmsg="")
    else:
        typer.echo(banner)
        start_ipython(argv=["--no-banner"], user_ns=names)
