"""Errors on their way to Spark's user: a worker's exception arrives as text, so the text begins with the error's code.

[DATA_LOST] `orders`/0 was to be read from offset 5, but its log starts at 11: 6 offsets are gone; …
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bascule.errors import BasculeError

P = ParamSpec("P")
T = TypeVar("T")


def coded(function: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls: errors leave it with their code in front."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return function(*arguments, **options)
        except BasculeError as error:
            raise with_code(error) from None

    return call


def with_code(error: BasculeError) -> BasculeError:
    """The error itself, its message beginning with its code."""
    if not error.message.startswith(f"[{error.code}]"):
        error.message = f"[{error.code}] {error.message}"
        error.args = (error.message,)
    return error
