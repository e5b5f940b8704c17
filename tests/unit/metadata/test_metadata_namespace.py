"""The namespace that a data directory belongs to."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bascule.broker.main import parse
from bascule.errors import FormatTooNew, StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.namespace import FORMER_DEFAULT, store_namespace, stored_namespace

DISK = PosixDisk()


def old_directory(path: Path) -> Path:
    """As a version that did not store the namespace left it."""
    (path / "raft").mkdir(parents=True)
    (path / "raft" / "state-1").write_bytes(b"{}")
    return path


def test_a_directory_without_data_has_none(tmp_path: Path) -> None:
    assert stored_namespace(DISK, str(tmp_path / "missing")) is None
    (tmp_path / "server").write_bytes(b"an id alone is no state")
    assert stored_namespace(DISK, str(tmp_path)) is None


def test_it_is_stored_and_a_change_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store_namespace(DISK, str(tmp_path), "red")
    store_namespace(DISK, str(tmp_path), "red")
    assert stored_namespace(DISK, str(tmp_path)) == "red"
    with caplog.at_level(logging.WARNING):
        store_namespace(DISK, str(tmp_path), "blue")
    assert "`red`" in caplog.text and "`blue`" in caplog.text
    assert stored_namespace(DISK, str(tmp_path)) == "blue"


def test_a_damaged_file_is_refused_until_the_namespace_is_configured(tmp_path: Path) -> None:
    store_namespace(DISK, str(tmp_path), "red")
    file = tmp_path / "namespace"
    file.write_bytes(file.read_bytes().replace(b"red", b"rad"))
    with pytest.raises(StorageError, match="damaged"):
        stored_namespace(DISK, str(tmp_path))
    store_namespace(DISK, str(tmp_path), "red")
    assert stored_namespace(DISK, str(tmp_path)) == "red"


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    line = b'{"namespace":"red","version":2}'
    (tmp_path / "namespace").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(FormatTooNew):
        stored_namespace(DISK, str(tmp_path))


# ── the configuration of a server ────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def own_data_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BASCULE_CLUSTERING_NAMESPACE", raising=False)


def used(*arguments: str) -> tuple[str, Path]:
    config, _ = parse(arguments)
    return config.cluster.replication.namespace, config.data_dir


def test_a_new_server_gets_the_default(tmp_path: Path) -> None:
    assert used() == ("bascule-default", tmp_path / "home" / "bascule" / "bascule-default")
    assert used("-d", str(tmp_path / "own")) == ("bascule-default", tmp_path / "own")


def test_a_configured_namespace_takes_precedence(tmp_path: Path) -> None:
    own = old_directory(tmp_path / "own")
    assert used("-d", str(own), "--namespace", "red") == ("red", own)
    assert used("-d", str(own)) == (FORMER_DEFAULT, own)


def test_the_default_directory_of_the_former_default_is_found(tmp_path: Path) -> None:
    former = old_directory(tmp_path / "home" / "bascule" / FORMER_DEFAULT)
    assert used() == (FORMER_DEFAULT, former)
    new = tmp_path / "home" / "bascule" / "bascule-default"
    store_namespace(DISK, str(new), "bascule-default")
    assert used() == ("bascule-default", new)
