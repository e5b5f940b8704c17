"""A session of Spark that is ready for streams, in one call.

    spark = bascule.spark.session("orders")                            # a Spark of its own, in this process
    spark = bascule.spark.session("orders", "spark://master:7077", pack="deps.tar.gz")    # see `bascule spark pack`
    spark = bascule.spark.session("orders", "sc://server:15002")       # Spark Connect: no Java here at all

Under `spark-submit` the cluster, its Java and its Python are given and stay unchanged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import InvalidOption, MissingExtra
from bascule.spark import java
from bascule.spark.executors.interpreter import SETTING, executors_python, found_by_java
from bascule.spark.executors.pack import FOLDER, SUFFIXES, check_pack, must_match, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2.properties")
"""Errors only, on stderr: in place of Spark's own, which begins every program with a page of warnings."""

RUNTIME_SETTINGS: Final = {
    # Dates and hours of messages mean the same wherever the session runs.
    "spark.sql.session.timeZone": "UTC",
    # The only one that all stateful operators work with.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
"""What a server of Spark Connect takes from its clients too."""

START_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""What is settled when a Spark starts."""

ARCHIVES: Final = "spark.archives"
EXECUTORS_PATH: Final = "spark.executorEnv.PYTHONPATH"
PYTHON_FILES: Final = ("spark.submit.pyFiles", "spark.files")

_DEFAULT: Final = re.compile(r"(spark\.[^\s=:]+)\s*[\s=:]\s*(.*)")
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?$")


def session(
    name: str = "bascule", master: str | None = None, *, pack: str | Path | None = None, **conf: Any
) -> SparkSession:
    """A session named `name`, or the one there is. `master` is `local[*]` unless it is given here or by `spark-submit`; one that
    begins with `sc://` is a server of Spark Connect. `pack` is the archive of `bascule spark pack` for the executors of a cluster.
    `conf` holds more of Spark's settings: `**{"spark.driver.memory": "4g"}`.
    """
    settings = {key: _spelled(key, value) for key, value in conf.items()}
    master = master or settings.pop("spark.master", None)
    if pack is not None:
        settings = with_pack(settings, Path(pack), master)
    check_files(settings)
    remote = master if master is not None and master.startswith("sc://") else None
    builder = _spark_session_class().builder.appName(name)
    if remote is not None or (master is None and "SPARK_REMOTE" in os.environ):
        return _connect(builder, remote, settings)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the Java
        return _started(builder, {**RUNTIME_SETTINGS, **settings})
    master = master or "local[*]"
    own = {**RUNTIME_SETTINGS, **START_SETTINGS, **_for_master(master), **settings}
    own["spark.driver.extraJavaOptions"] = _java_options(own.get("spark.driver.extraJavaOptions", ""))
    if is_local(master):
        java.prepare(python=settings.get(SETTING, sys.executable))
        return _started(builder.master(master), own)
    command = executors_python({**spark_defaults(os.environ), **settings}, os.environ)
    java.prepare(python=command)
    with found_by_java(command, java.cache_directory() / "python"):
        return _started(builder.master(master), own)


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of the user's `spark-defaults.conf`. Java reads the file too, but what is set here would replace them there."""
    folder = environ.get("SPARK_CONF_DIR") or (f"{environ['SPARK_HOME']}/conf" if environ.get("SPARK_HOME") else None)
    try:
        lines = Path(folder, "spark-defaults.conf").read_text("utf-8").splitlines() if folder else []
    except OSError:
        return {}
    found = (_DEFAULT.match(line.strip()) for line in lines)
    return {one[1]: one[2] for one in found if one is not None}


def is_local(master: str) -> bool:
    """Whether a master runs its tasks in the driver's own Java."""
    return _LOCAL.match(master) is not None


def with_pack(settings: Mapping[str, str], pack: Path, master: str | None) -> dict[str, str]:
    """The settings with which executors unpack a pack and find its packages. Raises an error for a pack that cannot be used here."""
    if master is None or is_local(master) or master.startswith("sc://") or "PYSPARK_GATEWAY_PORT" in os.environ:
        at = "spark-submit" if "PYSPARK_GATEWAY_PORT" in os.environ else f"`{master or 'local[*]'}`"
        raise InvalidOption(
            f"a pack was given, which is for the executors of a cluster, and {at} takes none from here",
            hint="leave it out; spark-submit and the server of Spark Connect are given it as `--archives`",
        )
    check_pack(pack)
    given = {**spark_defaults(os.environ), **settings}
    archives = [one for one in (given.get(ARCHIVES), f"{pack.resolve()}#{FOLDER}") if one]
    path = [one for one in (f"./{FOLDER}", given.get(EXECUTORS_PATH)) if one]
    return {**settings, ARCHIVES: ",".join(archives), EXECUTORS_PATH: os.pathsep.join(path)}


def check_files(settings: Mapping[str, str]) -> None:
    """Raises an error for files that executors could not use: a wheel of ours, or a pack for another Python."""
    for name in PYTHON_FILES:
        for one in filter(None, settings.get(name, "").split(",")):
            if Path(one).name.startswith("bascule-") and one.endswith((".whl", ".zip", ".egg")):
                raise InvalidOption(
                    f"`{name}` has {one}: Python imports no compiled module from it, and the package has many",
                    hint="pack what executors need with `bascule spark pack`, and give it as `pack`",
                )
    for one in filter(None, settings.get(ARCHIVES, "").split(",")):
        path = Path(one.removeprefix("file://").partition("#")[0])
        manifest = read_manifest(path) if path.name.endswith(SUFFIXES) and path.is_file() else None
        if manifest is not None:
            must_match(manifest, path)


def _spark_session_class() -> Any:
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(
            f"Spark is not installed: {error.name} is missing", hint='`pip install "bascule[spark]"`'
        ) from None
    return SparkSession


def _connect(builder: Any, remote: str | None, settings: dict[str, str]) -> SparkSession:
    """Settings that a server takes at its start only are its own affair."""
    if remote is not None:
        builder = builder.remote(remote)
    try:
        return _started(builder, {**RUNTIME_SETTINGS, **settings})
    except ImportError as error:
        raise MissingExtra(f"Spark Connect is not installed: {error}", hint='`pip install "bascule[spark]"`') from None


def _started(builder: Any, settings: dict[str, str]) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    found: SparkSession = builder.getOrCreate()
    return found


def _for_master(master: str) -> dict[str, str]:
    """A Spark on this machine alone listens on the loopback, and shuffles into as many pieces as it has threads."""
    local = _LOCAL.match(master)
    if local is None:
        return {}
    threads = local[1] if local[1] and local[1] != "*" else str(os.cpu_count() if local[1] else 1)
    return {
        "spark.sql.shuffle.partitions": threads,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _java_options(given: str) -> str:
    """With ours, where the caller has none of the kind."""
    if "-Xss" not in given:
        # Spark looks at the text of an error, of a query that is stopped say, with a pattern that takes a stack as deep as it is long.
        given = f"{given} -Xss16m"
    if "log4j2.configurationFile" not in given and "log4j.configurationFile" not in given:
        given = f"{given} -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    return given.strip()


def _spelled(key: str, value: Any) -> str:
    """As Spark writes values."""
    if not key.startswith("spark."):
        raise InvalidOption(
            f"`{key}` is no setting of Spark: they begin with `spark.`",
            hint='give them as `session("name", **{"spark.driver.memory": "4g"})`',
        )
    return str(value).lower() if isinstance(value, bool) else str(value)
