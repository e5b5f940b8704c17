"""The command line: one file per family of commands, and one table of exit codes for scripts to rely on."""

from __future__ import annotations

from typing import Final

from bascule import errors

EXIT_CODES: Final[dict[type[errors.BasculeError], int]] = {
    errors.CallerError: 2,
    errors.StateError: 3,
    errors.OperatorError: 4,
    errors.Unavailable: 5,
    errors.OutcomeUnknown: 6,
}
"""By who has to act. 2 is also what a misspelt option gives."""

EXIT_BUG: Final = 70
"""Something that Bascule should not have let happen (`EX_SOFTWARE` of sysexits.h)."""

EXIT_USAGE: Final = EXIT_CODES[errors.CallerError]
"""A misspelt command, option or value."""

EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


def exit_code(error: errors.BasculeError) -> int:
    """What `bascule` exits with for this error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), EXIT_BUG)
