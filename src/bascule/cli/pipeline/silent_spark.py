"""A Spark session without log output: the command itself reports errors."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bascule.errors import BasculeError, OperatorError
from bascule.spark.errors.table_formats import of_table_format
from bascule.spark.executors.look import look, must_fit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def quiet_session(
    name: str, master: str | None, conf: Mapping[str, str] | None = None, pack: Path | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped at the end of the block. Raises what keeps the executors of a cluster from running our tasks."""
    logging.disable(logging.CRITICAL)  # py4j logs every Ctrl-C
    with tempfile.TemporaryFile() as said:
        spark = _started(name, master, conf or {}, pack, said)
        try:
            if not type(spark).__module__.startswith("pyspark.sql.connect"):
                spark.sparkContext.setLogLevel("OFF")
                if not spark.sparkContext.master.startswith("local"):
                    must_fit(look(spark))
            yield spark
        finally:
            with _into(said):
                spark.stop()


def _started(name: str, master: str | None, conf: Mapping[str, str], pack: Path | None, said: IO[bytes]) -> Any:
    """Start a session with its stderr, which Java inherits, in a file; on failure the error contains its last line."""
    from bascule.spark import session

    handler = signal.getsignal(signal.SIGINT)
    try:
        with _into(said):
            spark = session(name, master, pack=pack, **conf)
        # Spark's own handler calls Java to cancel all jobs, possibly during another call, and prints the resulting traceback.
        signal.signal(signal.SIGINT, handler)
        return spark
    except BasculeError:
        raise
    except Exception as error:
        said.seek(0)
        known = of_table_format(said.read().decode("utf-8", "replace"))
        if known is not None:
            raise known from None
        said.seek(0)
        lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        raise OperatorError(
            f"Spark does not start: {(lines or str(error).splitlines() or ['no reason given'])[-1]}",
            hint="`bascule doctor spark` looks for the cause",
        ) from error


@contextlib.contextmanager
def _into(file: IO[bytes]) -> Iterator[None]:
    """Redirect stderr of this process and its children to a file."""
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
