"""The entry point of `bascule`. No traceback reaches a user: a failure is a message, a hint and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from bascule import __version__
from bascule.cli import EXIT_BUG, EXIT_CODES, EXIT_INTERRUPTED, config, exit_code, log, server
from bascule.errors import BasculeError, OperatorError

app = typer.Typer(
    name="bascule",
    help="Durable, replicated, ordered streams attached to NATS subjects.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("server", context_settings=server.PASS_ALL_ON, add_help_option=False)(server.server)
app.command("demo", context_settings=server.PASS_ALL_ON, add_help_option=False)(server.demo)
app.add_typer(log.app, name="log")
app.add_typer(config.app, name="config")


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
    run_reporting_errors(app)


def run_reporting_errors(program: Callable[[], object]) -> None:
    """Run a program; whatever it raises becomes a message, a hint and an exit code."""
    try:
        program()
    except (Exception, KeyboardInterrupt) as error:
        # Read from the arguments: the option must work even where parsing them is what failed.
        if "--traceback" in sys.argv:
            raise
        _leave(error)


def _leave(error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    if isinstance(error, BasculeError):
        _complain(error.message, error.hint)
        sys.exit(exit_code(error))
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f": `{error.filename}`"
        _complain(f"{error.strerror}{place}", None)
        sys.exit(EXIT_CODES[OperatorError])
    _complain(
        f"Bascule has a bug: {type(error).__name__}: {error}",
        "run it again as `bascule --traceback …` and report what it says",
    )
    sys.exit(EXIT_BUG)


def _complain(message: str, hint: str | None) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    if hint is not None:
        typer.secho("hint: ", fg="cyan", bold=True, nl=False, err=True)
        typer.echo(hint, err=True)


if __name__ == "__main__":
    main()
