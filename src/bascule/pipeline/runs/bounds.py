"""A run of a pipeline over a range of time: a backfill."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from bascule.errors import InvalidOption
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sources import SourceSpec
from bascule.pipeline.spec.steps import Join

_STARTS: Final = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})


def bounded(spec: PipelineSpec, start: datetime, end: datetime) -> PipelineSpec:
    """The pipeline for the messages of a range of time. It has a checkpoint of its own, so the pipeline's place stays where it is."""
    if start >= end:
        raise InvalidOption(
            f"`--between` is `{_shown(start)} {_shown(end)}`", hint="the first time must be before the second one"
        )
    steps = tuple(
        replace(step, more=_between(step.source, start, end)) if isinstance(step, Join) and step.stream else step
        for step in spec.steps
    )
    source = replace(spec.source, more=_between(spec.source, start, end))
    place = "-".join(re.sub(r"\W", "", _shown(moment)) for moment in (start, end))
    return replace(spec, source=source, steps=steps, checkpoint=f"{spec.checkpoint}.between-{place}")


def _between(source: SourceSpec, start: datetime, end: datetime) -> dict[str, str]:
    """The options of a source for the messages of a range of time. A partition without a message in it is not read."""
    kept = {name: value for name, value in source.options.items() if name.lower() not in _STARTS}
    return {
        **kept,
        "startingTimestamp": _shown(start),
        "startingOffsetsByTimestampStrategy": "latest",
        "untilTimestamp": _shown(end),
    }


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
