"""Named static tables, which rows can be joined with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from bascule.config.values.key import setting
from bascule.config.values.kinds import Text
from bascule.pipeline.spec.document import KeyGroup
from bascule.pipeline.spec.kinds import Identifier, TablePath, TextMap

_NAME: Final = "What the table is called in `join`, and the column that its rows become."


@dataclass(frozen=True, slots=True)
class CsvTable(KeyGroup):
    """`csv`: files with a header line"""

    required: ClassVar = frozenset({"name", "path", "schema"})

    name: str = setting("name", Identifier(), "", default_text="–", meaning=_NAME)
    path: str = setting("path", TablePath(), "", default_text="–", meaning="A file, or a folder of files.")
    schema: str = setting(
        "schema",
        Text(),
        "",
        default_text="–",
        meaning="Columns as in SQL: `id BIGINT, name STRING`. A cell that does not fit ends the pipeline.",
    )
    more: Mapping[str, str] | None = setting(
        "options",
        TextMap(),
        None,
        meaning="Options of Spark's CSV reader: `sep: ;`, `header: false`, `mode: PERMISSIVE`.",
    )


@dataclass(frozen=True, slots=True)
class ParquetTable(KeyGroup):
    """`parquet`: a file or a folder of files"""

    required: ClassVar = frozenset({"name", "path"})

    name: str = setting("name", Identifier(), "", default_text="–", meaning=_NAME)
    path: str = setting("path", TablePath(), "", default_text="–", meaning="A file, or a folder of files.")


@dataclass(frozen=True, slots=True)
class DeltaTable(KeyGroup):
    """`delta`: a Delta table, with Delta's own jar if Spark has it, and otherwise with the package `deltalake`"""

    required: ClassVar = frozenset({"name", "path"})

    name: str = setting("name", Identifier(), "", default_text="–", meaning=_NAME)
    path: str = setting("path", TablePath(), "", default_text="–", meaning="The folder of the table.")


@dataclass(frozen=True, slots=True)
class JdbcTable(KeyGroup):
    """`jdbc`: a table or a query of a database, whose driver Spark has to have"""

    required: ClassVar = frozenset({"name", "url", "table"})

    name: str = setting("name", Identifier(), "", default_text="–", meaning=_NAME)
    url: str = setting("url", Text(), "", default_text="–", meaning="`jdbc:postgresql://host/shop`.")
    table: str = setting("table", Text(), "", default_text="–", meaning="A table, or `(SELECT …) AS t`.")
    user: str | None = setting("user", Text(), None, meaning="The user.")
    password: str | None = setting(
        "password", Text(), None, meaning="Write `${PASSWORD}` and set the variable.", is_secret=True
    )
    more: Mapping[str, str] | None = setting(
        "options", TextMap(), None, meaning="Options of Spark's JDBC reader: `driver: org.postgresql.Driver`."
    )


Table = CsvTable | ParquetTable | DeltaTable | JdbcTable

TABLES: Final[Mapping[str, type[KeyGroup]]] = {
    "csv": CsvTable,
    "parquet": ParquetTable,
    "delta": DeltaTable,
    "jdbc": JdbcTable,
}
