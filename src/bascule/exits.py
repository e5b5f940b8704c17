"""How a program of ours ends: every failure becomes a message, a hint and an exit code. No traceback reaches a user."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from bascule import errors

EXIT_CODES: Final[dict[type[errors.BasculeError], int]] = {
    errors.CallerError: 2,
    errors.StateError: 3,
    errors.OperatorError: 4,
    errors.Unavailable: 5,
    errors.OutcomeUnknown: 6,
}
"""Exit code of each group of errors, by the party that has to act. A misspelt option also exits with 2."""

EXIT_BUG: Final = 70
"""An error that Bascule should have caught (`EX_SOFTWARE` of sysexits.h)."""

EXIT_USAGE: Final = EXIT_CODES[errors.CallerError]
"""A misspelt command, option or value."""

EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


def exit_code(error: errors.BasculeError) -> int:
    """The exit code of `bascule` for this error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), EXIT_BUG)


def run_reporting_errors(program: Callable[[], object]) -> None:
    """Run a program; whatever it raises becomes a message, a hint and an exit code."""
    try:
        program()
    except BrokenPipeError:
        leave_quietly()
    except (Exception, KeyboardInterrupt) as error:
        # Taken from the arguments themselves: `--traceback` must work even when parsing them is what failed.
        if "--traceback" in sys.argv:
            raise
        _leave(error)


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Run a server as `run_reporting_errors` does, then end the process without waiting for threads.

    pyarrow's Flight server would wait at exit for calls whose clients do not read. The kernel closes their connections.
    """
    code: object = 0
    try:
        run_reporting_errors(program)
    except SystemExit as ending:
        code = ending.code or 0
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else EXIT_BUG)


def leave_quietly() -> NoReturn:
    """Exit with 0: the reader of our output, such as `head`, has closed the pipe, which is no failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    sys.exit(0)


def wants_colour() -> bool:
    """Whether output to a terminal may have colours: yes unless NO_COLOR is set (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


def styled(text: str, *, line_break: bool = True, err: bool = False, **style: Any) -> None:
    """Print the text in colour on a terminal, and plain in a pipe."""
    import typer

    typer.echo(typer.style(text, **style) if wants_colour() else text, nl=line_break, err=err)


def _leave(error: BaseException) -> NoReturn:
    import typer  # takes long, and a server that starts has no use for it

    # The base classes of click's usage errors: typer bundles click or depends on it, by version, so they have no stable import path.
    usage_error, click_error = typer.BadParameter.__mro__[1:3]
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    if isinstance(error, errors.BasculeError):
        _complain(error.message, error.hint)
        sys.exit(exit_code(error))
    if isinstance(error, click_error):
        _complain_of_usage(error, usage_error)
        sys.exit(EXIT_USAGE)
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f": `{error.filename}`"
        _complain(f"{error.strerror}{place}", None)
        sys.exit(EXIT_CODES[errors.OperatorError])
    _complain(
        f"Bascule has a bug: {type(error).__name__}: {error}",
        "run it again as `bascule --traceback …` and report what it prints",
    )
    sys.exit(EXIT_BUG)


def _complain_of_usage(error: Any, usage_error: type[BaseException]) -> None:
    """Report an unknown option or command, a value of the wrong type, or a missing argument."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return  # the help page was printed
    message = error.format_message().rstrip(".") + _given(error)
    found = getattr(error, "ctx", None) if isinstance(error, usage_error) else None
    path = "bascule" if found is None else found.command_path
    _complain(message[:1].lower() + message[1:], f"`{path} --help` shows how to use it")


def _given(error: Any) -> str:
    """The refused value as the user typed it: typer's message leaves it out."""
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, argument in enumerate(sys.argv):
            if argument == option and place + 1 < len(sys.argv):
                return f", it is `{sys.argv[place + 1]}`"
            if argument.startswith(f"{option}="):
                return f", it is `{argument.partition('=')[2]}`"
    return ""


def _complain(message: str, hint: str | None) -> None:
    import typer

    styled("error: ", fg="red", bold=True, line_break=False, err=True)
    typer.echo(message, err=True)
    if hint is not None:
        styled("hint: ", fg="cyan", bold=True, line_break=False, err=True)
        typer.echo(hint, err=True)
