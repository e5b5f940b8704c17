"""A pipeline from a file as a program that `spark-submit` can start:

    spark-submit --master spark://host:7077 "$(python -m bascule.pipeline --where)" orders.yaml --once

`python -m bascule.pipeline orders.yaml` runs the same with a Spark of its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    sys.path.pop(0)  # where spark-submit found this file: the files beside it are not top-level modules


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bascule.pipeline", description="Run a pipeline from a file.")
    parser.add_argument("file", nargs="?", help="the pipeline's file")
    parser.add_argument("--once", action="store_true", help="process the messages that are there now, then exit")
    parser.add_argument("--where", action="store_true", help="print the path of this program, for spark-submit")
    given = parser.parse_args(arguments)
    if given.where:
        print(Path(__file__).resolve())
        return 0
    if given.file is None:
        parser.error("name the pipeline's file")
    return run(Path(given.file), once=given.once)


def run(file: Path, *, once: bool) -> int:
    """With the session that spark-submit has prepared, or one of its own. Returns the exit code."""
    from bascule.errors import BasculeError
    from bascule.exits import exit_code
    from bascule.pipeline.checks import look_around, must_run
    from bascule.pipeline.display import RunOptions, run_displayed
    from bascule.pipeline.spec.pipeline import load
    from bascule.spark import session

    try:
        spec = load(file)
        warnings = must_run(look_around(spec))
        spark = session(f"pipeline {spec.name}", None, **spec.spark)
        try:
            run_displayed(spark, spec, RunOptions(once=once), warnings)
        finally:
            spark.stop()
    except BasculeError as error:
        print(f"error: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
