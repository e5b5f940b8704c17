"""The entry point of `bascule`. No traceback reaches a user: a failure is a message, a hint and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from bascule import __version__
from bascule.cli import EXIT_BUG, EXIT_CODES, EXIT_INTERRUPTED, EXIT_USAGE, exit_code
from bascule.cli.cluster import status as cluster
from bascule.cli.cluster import top
from bascule.cli.pipeline import commands as pipeline
from bascule.cli.pipeline import spark
from bascule.cli.server import config, context, doctor, log
from bascule.cli.server import start as server
from bascule.cli.stream import bench, cursor, group, publish, subscribe
from bascule.cli.stream import streams as stream
from bascule.cli.terminal.output import styled
from bascule.errors import BasculeError, OperatorError

MESSAGES: Final = "Messages"
CLUSTER: Final = "Clusters"
SPARK: Final = "Spark"
SERVERS: Final = "Servers"


class Commands(TyperGroup):
    """Our words for what is wrong, and our exit codes, in place of typer's."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        return super().main(*arguments, **{**options, "prog_name": "bascule", "standalone_mode": False})

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which typer takes for a failure
            _leave_quietly()


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
app.add_typer(context.app, name="context", rich_help_panel=CLUSTER)
app.add_typer(bench.app, name="bench", rich_help_panel=CLUSTER)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=SPARK)
app.add_typer(spark.app, name="spark", rich_help_panel=SPARK)
app.command("server", context_settings=server.PASS_ALL_ON, add_help_option=False, rich_help_panel=SERVERS)(
    server.server
)
app.command("demo", context_settings=server.PASS_ALL_ON, add_help_option=False, rich_help_panel=SERVERS)(server.demo)
app.add_typer(log.app, name="log", rich_help_panel=SERVERS)
app.add_typer(config.app, name="config", rich_help_panel=SERVERS)

# typer carries a copy of click, or asks for it, by version: what they raise for wrong usage is found by its heir.
_USAGE_ERROR: Final[Any] = typer.BadParameter.__mro__[1]
_CLICK_ERROR: Final[Any] = typer.BadParameter.__mro__[2]


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
        bool, typer.Option("--traceback", help="Show where an error arose, for bug reports.")
    ] = False,
) -> None:
    """Options that stand in front of the command."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    run_reporting_errors(_run)


def _run() -> NoReturn:
    code = app()
    # Whoever reads our output may be gone by now; it is better to hear of it here than while the interpreter leaves.
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def run_reporting_errors(program: Callable[[], object]) -> None:
    """Run a program; whatever it raises becomes a message, a hint and an exit code."""
    try:
        program()
    except BrokenPipeError:
        _leave_quietly()
    except (Exception, KeyboardInterrupt) as error:
        # Read from the arguments: the option must work even where parsing them is what failed.
        if "--traceback" in sys.argv:
            raise
        _leave(error)


def _leave_quietly() -> NoReturn:
    """Whoever read our output has seen enough, as `head` has: that is no failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    sys.exit(0)


def _leave(error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    if isinstance(error, BasculeError):
        _complain(error.message, error.hint)
        sys.exit(exit_code(error))
    if isinstance(error, _CLICK_ERROR):
        _complain_of_usage(error)
        sys.exit(EXIT_USAGE)
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f": `{error.filename}`"
        _complain(f"{error.strerror}{place}", None)
        sys.exit(EXIT_CODES[OperatorError])
    _complain(
        f"Bascule has a bug: {type(error).__name__}: {error}",
        "run it again as `bascule --traceback …` and report what it says",
    )
    sys.exit(EXIT_BUG)


def _complain_of_usage(error: Any) -> None:
    """Of an option or a command that does not exist, a value that is not of its type, something that is missing."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return  # the help page was printed
    message = error.format_message().rstrip(".") + _given(error)
    found = getattr(error, "ctx", None) if isinstance(error, _USAGE_ERROR) else None
    path = "bascule" if found is None else found.command_path
    _complain(message[:1].lower() + message[1:], f"`{path} --help` shows how it is meant")


def _given(error: Any) -> str:
    """The value that was refused, which typer does not name."""
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, argument in enumerate(sys.argv):
            if argument == option and place + 1 < len(sys.argv):
                return f", it is `{sys.argv[place + 1]}`"
            if argument.startswith(f"{option}="):
                return f", it is `{argument.partition('=')[2]}`"
    return ""


def _complain(message: str, hint: str | None) -> None:
    styled("error: ", fg="red", bold=True, line_break=False, err=True)
    typer.echo(message, err=True)
    if hint is not None:
        styled("hint: ", fg="cyan", bold=True, line_break=False, err=True)
        typer.echo(hint, err=True)


if __name__ == "__main__":
    main()
