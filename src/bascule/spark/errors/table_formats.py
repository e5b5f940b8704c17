"""Spark's errors about tables of Delta and Iceberg, whose jars the user brings: which jar is missing, or what the catalog lacks."""

from __future__ import annotations

import re
from typing import Final

from bascule.errors import BasculeError, MissingExtra, StateError

JARS: Final = {
    "delta": ("io.delta.", "io.delta:delta-spark_2.13:VERSION"),
    "iceberg": ("org.apache.iceberg.", "org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:VERSION"),
}
"""By format: how the names of its classes begin, and the coordinates of its jar."""

_NOT_FOUND: Final = re.compile(r"DATA_SOURCE_NOT_FOUND\] Failed to find the data source: `?(delta|iceberg)\b")
_CLASS: Final = re.compile(r"((?:io\.delta|org\.apache\.(?:spark\.sql\.delta|iceberg))\.[\w.$]+)")
_CLASS_MISSING: Final = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|[Cc]annot find catalog plugin class|CLASS_NOT_"
)
_UNRESOLVED: Final = re.compile(r"unresolved dependency: ([\w.-]+)#([\w.-]+);([\w.-]+)")
_SCHEMA: Final = re.compile(r"SCHEMA_NOT_FOUND\] The schema `?([^` ]+(?:`\.`[^`]+)*)`? cannot be found")
_LOCATION: Final = re.compile(
    r"(?:NON_EMPTY_LOCATION|LOCATION_ALREADY_EXISTS)\]?.*?(?:location|path)[^'\"`(/]*['\"`(]*(/[^'\"`)\s]+|\w+:/[^'\"`)\s]+)",
    re.DOTALL,
)


def of_table_format(said: str) -> BasculeError | None:
    """The error as one of ours; None if it is about something else."""
    unresolved = _UNRESOLVED.search(said)
    if unresolved is not None:
        group, artifact, version = unresolved.groups()
        return MissingExtra(
            f"Spark found no jar `{group}:{artifact}:{version}` in its repositories",
            hint="give coordinates of a version that exists for this Spark, or a local file with `--conf spark.jars=…`",
        )
    missing = _NOT_FOUND.search(said)
    table_format = missing[1] if missing is not None else _missing_class(said)
    if table_format is not None:
        return MissingExtra(
            f"Spark has no jar for tables of the format `{table_format}`",
            hint=f"give `--packages {JARS[table_format][1]}`, in a version that is made for this Spark and its Scala 2.13",
        )
    schema = _SCHEMA.search(said)
    if schema is not None:
        return StateError(
            f"the catalog of Spark has no schema `{schema[1].replace('`', '')}`",
            hint=f"create it once in the same catalog: `CREATE SCHEMA {schema[1]}`",
        )
    if "NON_EMPTY_LOCATION" in said or "LOCATION_ALREADY_EXISTS" in said:
        location = _LOCATION.search(said)
        return StateError(
            f"the folder{f' {location[1]}' if location else ''} has files, and the catalog of Spark does not know a table there",
            hint="Spark's default catalog forgets its tables when Spark ends: use one that keeps them, such as "
            "`--conf spark.sql.catalogImplementation=hive`",
        )
    return None


def _missing_class(said: str) -> str | None:
    found = _CLASS.search(said) if _CLASS_MISSING.search(said) else None
    if found is None:
        return None
    return "iceberg" if found[1].startswith("org.apache.iceberg") else "delta"
