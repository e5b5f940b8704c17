"""The Spark of a command: silent, because what goes wrong is told by the command itself, once and in its own words."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from bascule.errors import BasculeError, OperatorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def quiet_session(name: str, master: str | None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block."""
    logging.disable(logging.CRITICAL)  # py4j tells the root logger of every Ctrl-C
    with tempfile.TemporaryFile() as said:
        spark = _started(name, master, conf or {}, said)
        try:
            if not type(spark).__module__.startswith("pyspark.sql.connect"):
                spark.sparkContext.setLogLevel("OFF")
            yield spark
        finally:
            with _into(said):
                spark.stop()


def _started(name: str, master: str | None, conf: Mapping[str, str], said: IO[bytes]) -> Any:
    """Java inherits the place that its warnings go to: a file, which is shown if nothing comes of it."""
    from bascule.spark import session

    handler = signal.getsignal(signal.SIGINT)
    try:
        with _into(said):
            spark = session(name, master, **conf)
        # Spark's own asks Java to cancel all jobs, in the middle of whatever is said to Java at the moment, and shows what comes of it.
        signal.signal(signal.SIGINT, handler)
        return spark
    except BasculeError:
        raise
    except Exception as error:
        said.seek(0)
        lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        raise OperatorError(
            f"Spark does not start: {(lines or str(error).splitlines() or ['no reason'])[-1]}",
            hint="`bascule doctor spark` looks for the reason",
        ) from error


@contextlib.contextmanager
def _into(file: IO[bytes]) -> Iterator[None]:
    """What is written to stderr meanwhile, by this process and by those that it starts."""
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
