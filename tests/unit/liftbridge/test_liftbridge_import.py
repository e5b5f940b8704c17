"""The import of Go Liftbridge's directories: which copy counts, what is refused, and what a crash leaves."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from bascule.config import ServerConfig, load
from bascule.errors import InvalidOption, OperatorError, StateError
from bascule.liftbridge import importing
from bascule.liftbridge.directory import UNFINISHED_FILE, refuse_liftbridge_directory
from bascule.liftbridge.importing import check_messages, run_import
from bascule.liftbridge.plan import ImportOptions, make_plan
from bascule.log import LogStore
from bascule.log.disk.master_keys import MasterKeys
from tests.support.liftbridge_files import GoMessage, GoStream, create_stream, write_partition, write_raft, write_server


def quiet(_text: str) -> None:
    """No progress."""


def server(
    root: Path, messages: dict[str, list[GoMessage]], streams: list[GoStream] | None = None, *, server_id: str = "go-1"
) -> Path:
    write_server(root, server_id)
    for name, found in messages.items():
        write_partition(root, name, 0, {found[0].offset if found else 0: found})
    write_raft(root, [create_stream(one) for one in streams or [GoStream(name, name) for name in messages]])
    return root


def options(*sources: Path, **fields: Any) -> ImportOptions:
    return ImportOptions(sources=sources, namespace="bascule-default", **fields)


def config(target: Path) -> ServerConfig:
    return load(flags={"data.dir": target}, environ={})


def values(target: Path, stream: str, keys: MasterKeys | None = None) -> list[tuple[int, bytes | None]]:
    store = LogStore(target, keys=keys)
    try:
        log, found = store.log(stream, 0, stream_id=_stream_id(target, stream)), []
        offset = log.log_start_offset
        while (some := log.read(offset)) is not None:
            found += [(one.offset, one.value) for one in some.records()]
            offset = some.next_offset
        return found
    finally:
        store.close()


def _stream_id(target: Path, stream: str) -> int:
    from bascule.log.disk.operations import PosixDisk
    from bascule.log.disk.stream_marker import read_marker

    found = read_marker(PosixDisk(), target / "streams" / stream)
    assert found is not None
    return found


# ── several servers ──────────────────────────────────────────────────────────────────────────────


def test_the_copy_with_the_latest_epoch_and_offset_counts(tmp_path: Path) -> None:
    stream = [GoStream("s", "s", replicas=("a", "b", "c"))]
    longest = server(tmp_path / "a", {"s": [GoMessage(n, b"old", epoch=2) for n in range(9)]}, stream, server_id="a")
    elected = server(tmp_path / "b", {"s": [GoMessage(n, b"new", epoch=5) for n in range(4)]}, stream, server_id="b")
    behind = server(tmp_path / "c", {"s": [GoMessage(n, b"new", epoch=5) for n in range(3)]}, stream, server_id="c")
    plan = make_plan(options(longest, elected, behind))
    run_import(plan, config(tmp_path / "new"), None, quiet)
    assert values(tmp_path / "new", "s") == [(n, b"new") for n in range(4)]


def test_a_partition_that_only_other_servers_store_is_not_imported_as_empty(tmp_path: Path) -> None:
    streams = [GoStream("s", "s", replicas=("b", "c"))]
    root = server(tmp_path / "a", {"s": []}, streams, server_id="a")
    with pytest.raises(OperatorError, match="partition 0 of stream 's' is stored on b, c, and not on a"):
        make_plan(options(root))


def test_the_metadata_of_the_server_that_knows_most_counts(tmp_path: Path) -> None:
    old = server(tmp_path / "a", {"s": [GoMessage(0)]}, [GoStream("s", "old")])
    new = server(tmp_path / "b", {"s": [GoMessage(0)]}, [GoStream("t", "t"), GoStream("s", "new")])
    write_partition(new, "t", 0, {0: []})
    plan = make_plan(options(old, new))
    assert {one.stream.name: one.stream.subject for one in plan.streams} == {"s": "new", "t": "t"}


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_a_running_server_is_recognised_by_its_lock(tmp_path: Path) -> None:
    root = server(tmp_path / "go", {"s": []})
    with (root / "raft" / "raft.db").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="a Liftbridge server runs on"):
            make_plan(options(root))
    make_plan(options(root))


def test_damage_is_found_before_anything_is_written(tmp_path: Path) -> None:
    root = server(tmp_path / "go", {"s": [GoMessage(n, b"value") for n in range(3)]})
    log = next((root / "streams" / "s" / "0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    with pytest.raises(OperatorError, match="damaged at byte 0"):
        check_messages(make_plan(options(root)), quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["go"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"streams": frozenset({"x"})}, "--stream names the stream `x`"),
        ({"subjects": {"x": "y"}}, "--subject names the stream `x`"),
        ({"encrypted": frozenset({"x"})}, "--encrypted names the stream `x`"),
    ],
)
def test_a_misspelt_stream_is_refused(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    root = server(tmp_path / "go", {"s": []})
    with pytest.raises(InvalidOption, match=text):
        make_plan(options(root, **fields))


def test_a_subject_of_the_new_cluster_is_refused_and_can_be_replaced(tmp_path: Path) -> None:
    root = server(tmp_path / "go", {"s": []}, [GoStream("s", "bascule-default.x")])
    with pytest.raises(OperatorError, match=r"the subject `bascule-default\.x` of stream 's' cannot be used"):
        make_plan(options(root))
    assert make_plan(options(root, subjects={"s": "other"})).streams[0].stream.subject == "other"


# ── a crash ──────────────────────────────────────────────────────────────────────────────────────


def test_an_import_that_fails_midway_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = server(tmp_path / "go", {name: [GoMessage(n, b"v") for n in range(3)] for name in ("a", "b", "c")})
    plan, target = make_plan(options(root)), tmp_path / "new"
    copied: list[str] = []
    true_copy = importing._copy

    def failing(source: Any, *rest: Any) -> Any:
        if len(copied) == 2:
            raise OSError("power failure")
        copied.append(source.stream)
        return true_copy(source, *rest)

    monkeypatch.setattr(importing, "_copy", failing)
    with pytest.raises(OSError, match="power failure"):
        run_import(plan, config(target), None, quiet)
    assert (target / UNFINISHED_FILE).exists()
    with pytest.raises(OperatorError, match="was interrupted"):
        refuse_liftbridge_directory(target)
    monkeypatch.undo()
    report = run_import(plan, config(target), None, quiet)
    assert report.messages == 9
    refuse_liftbridge_directory(target)
    for name in ("a", "b", "c"):
        assert values(target, name) == [(n, b"v") for n in range(3)]


# ── content ──────────────────────────────────────────────────────────────────────────────────────


def test_timestamps_that_go_backwards_are_raised_and_counted(tmp_path: Path) -> None:
    root = server(
        tmp_path / "go", {"s": [GoMessage(n, b"v", timestamp=time) for n, time in enumerate((5, 9, 3, 9, 12))]}
    )
    report = run_import(make_plan(options(root)), config(tmp_path / "new"), None, quiet)
    assert report.partitions[0].raised_timestamps == 1


def test_without_metadata_streams_are_the_directories(tmp_path: Path) -> None:
    root = server(tmp_path / "go", {"s": [GoMessage(0, b"v")], "t": [GoMessage(0, b"w")]})
    (root / "raft" / "raft.db").write_bytes(b"damaged")
    with pytest.raises(OperatorError, match="cannot be read"):
        make_plan(options(root))
    plan = make_plan(options(root, without_metadata=True, subjects={"t": "shop.t"}))
    assert {one.stream.name: one.stream.subject for one in plan.streams} == {"s": "s", "t": "shop.t"}


def test_encrypted_values_are_decrypted_and_encrypted_again(tmp_path: Path) -> None:
    aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
    keywrap = pytest.importorskip("cryptography.hazmat.primitives.keywrap")
    master, data_key = b"0123456789abcdef", bytes(range(32))
    wrapped = keywrap.aes_key_wrap_with_padding(master, data_key)
    sealed = [
        bytes([len(wrapped)]) + wrapped + bytes(12) + aead.AESGCM(data_key).encrypt(bytes(12), b"secret %d" % n, None)
        for n in range(3)
    ]
    root = server(
        tmp_path / "go", {"s": [GoMessage(n, one) for n, one in enumerate(sealed)]}, [GoStream("s", "s", 1, {13: 1})]
    )
    with pytest.raises(OperatorError, match="there is no key"):
        make_plan(options(root))
    with pytest.raises(OperatorError, match="offset 0 of partition 0 of stream 's'"):
        check_messages(make_plan(options(root, keys=MasterKeys(bytes(16)))), quiet)
    new_key = MasterKeys(b"f" * 32)
    run_import(make_plan(options(root, keys=MasterKeys(master))), config(tmp_path / "new"), new_key, quiet)
    assert values(tmp_path / "new", "s", new_key) == [(n, b"secret %d" % n) for n in range(3)]
    log = next((tmp_path / "new" / "streams" / "s" / "0").glob("*.log"))
    assert b"secret" not in log.read_bytes()
