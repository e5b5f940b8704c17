"""Commits to a Delta table through deltalake: each version whole or not at all, and never in another writer's place.

An answer may be lost although the commit was made: every commit carries a mark, and after any error the log itself is asked whose
commit is there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import ArchiveConflict, BasculeError
from bascule.lake.delta.documents import sync_directory
from bascule.lake.delta.log import AddedFile, RemovedFile, commit_name, read_commit
from bascule.lake.delta.place import LakePlace, missing, store_error

if TYPE_CHECKING:
    import pyarrow as pa

_ALONE: Final = "only one pipeline may write a table: stop the other one"
MARK: Final = "bascule"
REOPEN_COMMITS: Final = 100
"""deltalake remembers every commit since it opened a table, so each update takes longer; from a new checkpoint it starts afresh."""


class DeltaWriter:
    """Of one table. Keeps what deltalake knows of it between commits."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place
        self._table: Any = None

    def create(
        self,
        schema: pa.Schema,
        *,
        partition_by: list[str],
        name: str,
        description: str,
        configuration: dict[str, str],
        information: dict[str, Any],
    ) -> None:
        """Make the table. Raises ArchiveConflict if another process has made it meanwhile."""
        transaction = _transaction()
        try:
            transaction.create_table_with_add_actions(
                self._target(),
                _delta_schema(schema),
                [],
                mode="error",
                partition_by=partition_by,
                name=name,
                description=description,
                configuration=configuration,
                storage_options=self._place.store_options,
                commit_properties=transaction.CommitProperties(custom_metadata={MARK: information}),
            )
        except Exception as error:
            if read_commit(self._place, 0) is not None:
                raise ArchiveConflict(f"{self._place} was made by another process", hint=_ALONE) from None
            raise store_error(self._place, error) from error
        self._sync(0)

    def commit(
        self,
        version: int,
        schema: pa.Schema,
        added: list[AddedFile],
        removed: list[tuple[RemovedFile, tuple[int, str]]],
        transactions: dict[str, int],
        information: dict[str, Any],
        mark: str,
        *,
        partition_by: list[str],
    ) -> None:
        """Make this version. `mark` is the `id` of the information under `bascule`, by which the commit is recognised."""
        transaction = _transaction()
        actions: list[Any] = [
            transaction.AddAction(one.path, one.size, dict(one.values), one.modified_ms, one.is_change, one.stats)
            for one in added
        ]
        actions += [
            transaction.RemoveAction(
                one.path, one.is_data_change, one.at_ms, size, {"date": date} if partition_by else None
            )
            for one, (size, date) in removed
        ]
        properties = transaction.CommitProperties(
            custom_metadata=information,
            max_commit_retries=0,
            app_transactions=[transaction.Transaction(name, value) for name, value in sorted(transactions.items())],
        )
        try:
            table = self._at(version - 1)
            table.create_write_transaction(
                actions,
                "append",
                _delta_schema(schema),
                partition_by,
                commit_properties=properties,
                # Looking for expired commits takes time proportional to the log.
                post_commithook_properties=transaction.PostCommitHookProperties(
                    create_checkpoint=True, cleanup_expired_logs=version % REOPEN_COMMITS == 0
                ),
            )
        except Exception as error:
            self._table = None
            self._settle(version, mark, error)
        self._sync(version)
        if version % REOPEN_COMMITS == 0:
            self._table = None

    def _settle(self, version: int, mark: str, error: Exception) -> None:
        """After an error: return if the commit is there all the same. Raises what became of it."""
        try:
            there = read_commit(self._place, version)
        except BasculeError:
            there = None
        if there is None:
            if isinstance(error, BasculeError):
                raise error
            raise store_error(self._place, error, commit_name(version)) from error
        about = there.info.get(MARK)
        if not isinstance(about, dict) or about.get("id") != mark:
            raise ArchiveConflict(
                f"{self._place}: another writer has made commit {version}; nothing of this batch was written",
                hint=_ALONE,
            ) from None

    def _at(self, version: int) -> Any:
        """The table as deltalake has it, at a version. Raises ArchiveConflict if it is further."""
        try:
            from deltalake import DeltaTable
        except ImportError as error:
            raise missing(error) from None
        if self._table is None:
            self._table = DeltaTable(self._target(), storage_options=self._place.store_options)
        else:
            self._table.update_incremental()
        if self._table.version() != version:
            found, self._table = self._table.version(), None
            raise ArchiveConflict(f"{self._place} is at version {found}, and not at {version}", hint=_ALONE)
        return self._table

    def _target(self) -> str:
        return self._place.uri if self._place.local is None else str(self._place.local.absolute())

    def _sync(self, version: int) -> None:
        """deltalake does not sync what it writes to a disk."""
        if self._place.local is None:
            return
        path = self._place.local / commit_name(version)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_directory(path.parent)


def _transaction() -> Any:
    try:
        from deltalake import transaction
    except ImportError as error:
        raise missing(error) from None
    return transaction


def _delta_schema(schema: pa.Schema) -> Any:
    from deltalake import Schema

    return Schema.from_arrow(schema)
