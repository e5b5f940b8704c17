"""Jobs of the command line that are restarted after failures that may pass, with a note for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bascule.cli.terminal.output import note

if TYPE_CHECKING:
    from bascule.pipeline.restarts.loop import Restart

T = TypeVar("T")
C = TypeVar("C")

Restarts = Annotated[
    int | None,
    typer.Option(
        "--restarts",
        help="Restarts in a row after failures that may pass, such as a broker that is down; 0 for none. Default: 20.",
        min=0,
        show_default=False,
        metavar="COUNT",
    ),
]


OnCommit = Callable[[C], None]


def restarted(job: Callable[[Callable[[OnCommit[C]], OnCommit[C]]], T], restarts: int | None) -> T:
    """The result of a job. The job wraps its callback for commits with what it gets: failures in a row are counted from a commit."""
    from bascule.pipeline.restarts.loop import RestartLoop
    from bascule.pipeline.restarts.policy import RestartPolicy

    loop = RestartLoop(RestartPolicy() if restarts is None else RestartPolicy(restarts), on_restart=_note)
    found: list[T] = []

    def noted(on_commit: OnCommit[C]) -> OnCommit[C]:
        def call(commit: C) -> None:
            loop.progressed()
            on_commit(commit)

        return call

    loop.run(lambda: found.append(job(noted)))
    return found[0]


def _note(restart: Restart) -> None:
    note(f"restart {restart.restarts} in {restart.pause_seconds:.0f} s: {restart.error}")
