"""Questions to the brokers of a pipeline before it starts: they fail within seconds, because a person waits for the answer."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.pipeline.jobs.archive import ArchiveOptions


def streams_at(connection: Mapping[str, str]) -> dict[str, str]:
    """The streams there are, with their subjects. `connection` is as the source has it. Raises Unavailable."""
    others = {name: value for name, value in connection.items() if name != "servers"}
    options = ArchiveOptions(path=".", subject=">", servers=connection["servers"], source=others)
    with options.tables() as tables:
        return {name: str(stream["subject"]) for name, stream in tables.offsets().items()}
