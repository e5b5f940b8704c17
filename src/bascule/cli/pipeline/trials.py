"""`bascule pipeline preview` and `test`: what the steps of a pipeline do to messages, without writing anything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.pipeline.run import ContextName, PipelineFile, spec_of
from bascule.cli.pipeline.silent_spark import quiet_session
from bascule.cli.target.target import Json, Server, explain
from bascule.cli.terminal.output import say, show_json, show_rows
from bascule.errors import BasculeError, StateError
from bascule.exits import styled

if TYPE_CHECKING:
    from bascule.pipeline.trials.preview import Stage
    from bascule.pipeline.trials.trial import Outcome

PREVIEW_ROWS_MAX = 1_000


def preview(
    file: PipelineFile,
    rows: Annotated[
        int, typer.Option("--rows", min=1, max=PREVIEW_ROWS_MAX, help="Messages to show, the newest ones.", metavar="N")
    ] = 10,
    server: Server = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show some messages after every step of FILE, and what each rule did to them. Writes nothing."""
    from bascule.pipeline.checks import look_around, must_run
    from bascule.pipeline.trials.preview import preview as stages_of

    spec, target = spec_of(file, server, context)
    try:
        must_run(one for one in look_around(spec) if one.name in ("brokers", "source"))
    except BasculeError as error:
        explain(error, target)
        raise
    with quiet_session(f"preview {spec.name}", None, spec.spark) as spark:
        stages = []
        for stage in stages_of(spark, spec, rows):
            stages.append(asdict(stage))
            if not as_json:
                _print(stage)
    if as_json:
        show_json(stages)


def _print(stage: Stage) -> None:
    count = f"more than {len(stage.rows)}" if stage.has_more else str(len(stage.rows))
    styled(f"── {stage.name}: {count} rows", bold=True)
    if stage.rows:
        show_rows(stage.columns, [["" if cell is None else cell for cell in row] for row in stage.rows])
    for one in stage.judged:
        say(f"  {one.rule}: {one.row}: {one.fate}: {one.reason}")


def test(
    file: PipelineFile,
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            help="The file of test cases. Default: `NAME.test.yaml` or `NAME.test.jsonl` beside FILE.",
            metavar="PATH",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Run the case of this name only.", metavar="NAME", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the test cases of FILE: messages in, expected rows out. Needs no brokers, writes nothing, and exits with 3 if rows differ."""
    from bascule.config.values.given import closest
    from bascule.errors import CallerError
    from bascule.pipeline.spec.pipeline import load
    from bascule.pipeline.trials.cases import cases_beside, load_cases
    from bascule.pipeline.trials.trial import run_case

    spec = load(file)
    path = cases or cases_beside(file)
    wanted = load_cases(path, spec)
    if only is not None:
        names = [case.name for case in wanted]
        wanted = [case for case in wanted if case.name == only]
        if not wanted:
            close = closest(only, names)
            raise CallerError(
                f"{path} has no case `{only}`",
                hint=f"did you mean `{close}`?" if close else f"there are {', '.join(names)}",
            )
    outcomes = []
    with quiet_session(f"test {spec.name}", None, spec.spark) as spark:
        for case in wanted:
            outcomes.append(run_case(spark, spec, case))
            if not as_json:
                _print_outcome(outcomes[-1])
    if as_json:
        show_json([{"name": one.name, "passed": one.is_right, "diff": one.differences} for one in outcomes])
    failed = [one for one in outcomes if not one.is_right]
    if failed:
        raise StateError(
            f"{len(failed)} of {len(outcomes)} cases of {path} failed: {', '.join(f'`{one.name}`' for one in failed)}"
        )
    if not as_json:
        say(f"{len(outcomes)} cases passed.")


def _print_outcome(outcome: Outcome) -> None:
    mark, colour = ("✓", "green") if outcome.is_right else ("✗", "red")
    styled(f"{mark} ", line_break=False, fg=colour)
    say(outcome.name)
    for line in outcome.differences:
        colour = {"-": "red", "+": "green"}.get(line[:1], "white")
        styled(f"  {line}", fg=colour)
