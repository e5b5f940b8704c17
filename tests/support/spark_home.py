"""A SPARK_HOME of one's own: Spark's executors keep their folders, and what is unpacked there, below it."""

from __future__ import annotations

from pathlib import Path

import pyspark


def spark_home(directory: Path) -> Path:
    """Spark as it is installed, but for its folder `work`."""
    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home
