"""The entry point of `bascule`: all commands, in the order of the help page."""

from __future__ import annotations

import functools
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from bascule import __version__
from bascule.cli.access import acl, audit, token
from bascule.cli.cluster import keys, top
from bascule.cli.cluster import status as cluster
from bascule.cli.pipeline import commands as pipeline
from bascule.cli.pipeline import spark
from bascule.cli.server import config, context, doctor, imports, log
from bascule.cli.server import start as server
from bascule.cli.stream import bench, cursor, group, publish, subscribe
from bascule.cli.stream import streams as stream
from bascule.exits import leave_quietly, run_reporting_errors

MESSAGES: Final = "Messages"
CLUSTER: Final = "Clusters"
SPARK: Final = "Spark"
ACCESS: Final = "Access"
SERVERS: Final = "Servers"


class Commands(TyperGroup):
    """The root group: leaves error messages and exit codes to `run_reporting_errors` instead of typer."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        return super().main(*arguments, **{**options, "prog_name": "bascule", "standalone_mode": False})

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # typer would report a failure
            leave_quietly()


app = typer.Typer(
    name="bascule",
    cls=Commands,
    help="Durable, replicated, ordered streams attached to NATS subjects.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(stream.app, name="stream", rich_help_panel=MESSAGES)
app.command("publish", rich_help_panel=MESSAGES)(publish.publish)
app.command("subscribe", rich_help_panel=MESSAGES)(subscribe.subscribe)
app.add_typer(cursor.app, name="cursor", rich_help_panel=MESSAGES)
app.add_typer(group.app, name="group", rich_help_panel=MESSAGES)
app.command("top", rich_help_panel=CLUSTER)(top.top)
app.command("doctor", rich_help_panel=CLUSTER)(doctor.doctor)
app.add_typer(cluster.app, name="cluster", rich_help_panel=CLUSTER)
app.add_typer(keys.app, name="keys", rich_help_panel=CLUSTER)
app.add_typer(context.app, name="context", rich_help_panel=CLUSTER)
app.add_typer(bench.app, name="bench", rich_help_panel=CLUSTER)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=SPARK)
app.add_typer(spark.app, name="spark", rich_help_panel=SPARK)
app.add_typer(acl.app, name="acl", rich_help_panel=ACCESS)
app.add_typer(token.app, name="token", rich_help_panel=ACCESS)
app.add_typer(audit.app, name="audit", rich_help_panel=ACCESS)
app.command("server", context_settings=server.PASS_ALL_ON, add_help_option=False, rich_help_panel=SERVERS)(
    server.server
)
app.command("demo", context_settings=server.PASS_ALL_ON, add_help_option=False, rich_help_panel=SERVERS)(server.demo)
app.add_typer(log.app, name="log", rich_help_panel=SERVERS)
app.add_typer(imports.app, name="import", rich_help_panel=SERVERS)
app.add_typer(config.app, name="config", rich_help_panel=SERVERS)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bascule {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option("--version", "-v", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    _traceback: Annotated[
        bool, typer.Option("--traceback", help="Print a traceback when a command fails, for bug reports.")
    ] = False,
) -> None:
    """Options that precede the command."""


@functools.cache
def command() -> Any:
    """Return the tree of all commands. To build it takes longer than most commands take."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line and exit with its exit code."""
    run_reporting_errors(_run)


def _run() -> NoReturn:
    code = command()()
    # Flush here: a closed pipe is then reported as such, and not by the interpreter while it exits.
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
