"""The master key is rotated while a log is in use: data keys are re-wrapped, messages stay as they were."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import CorruptBatch, EncryptionKeyError
from bascule.kernels.records import records
from bascule.log import LogOptions, LogStore, PartitionLog
from bascule.log.cleaning.rewrapping import UNKNOWN, KeyUse, count_keys, rewrap
from bascule.log.disk.encryption import BodyCipher, LogIdentity, former_associated_data
from bascule.log.disk.master_keys import EnvironmentKeys, KeyCommand, KeyFile, MasterKeys, key_id, parse_keys
from bascule.log.key_rotation import IDLE, KeyRotation
from tests.support.waiting import eventually
from tests.unit.log.log_helpers import Logs, everything, log_files, put, put_batch, resealed, stored

OLD, NEW, NEXT = b"o" * 32, b"n" * 32, b"x" * 16
OF = LogIdentity(7, 1)


def ignore(_done: int) -> None:
    """No progress is shown."""


def use(log: PartitionLog, keys: MasterKeys) -> KeyUse:
    return count_keys(log, keys, ignore)


def filled(logs: Logs, keys: MasterKeys, **choices: Any) -> PartitionLog:
    options = LogOptions(segment_bytes_max=1_000, encryption=True, **choices)
    log = logs.open(options=options, keys=keys, identity=OF)
    for number in range(12):
        put_batch(log, (b"key", b"value %d" % number * 10), (None, b"second"))
    return log


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_after_a_rewrap_the_old_key_is_not_needed_and_all_messages_are_the_same(logs: Logs, compression: str) -> None:
    keys = MasterKeys(OLD)
    log = filled(logs, keys, compression=compression)
    before, sizes = everything(log), [path.stat().st_size for path in log_files(log)]
    keys.switch(MasterKeys(NEW))
    assert use(log, keys).batches == {key_id(OLD): 12}
    report = rewrap(log, keys, ignore)
    assert (report.rewrapped, report.interrupted, report.left_alone) == (12, False, [])
    assert use(log, keys).batches == {key_id(NEW): 12}
    assert everything(log) == before
    assert [path.stat().st_size for path in log_files(log)][: len(sizes)] == sizes
    put(log, (b"key", b"later"))
    assert rewrap(log, keys, ignore).rewrapped == 0, "nothing is left to do"
    log.close()
    again = logs.open(options=log.options, keys=MasterKeys(NEW), identity=OF)
    assert everything(again)[:-1] == before
    assert use(again, MasterKeys(NEXT)).batches == {UNKNOWN: 13}


def test_batches_of_the_former_format_become_bound_to_their_partition(logs: Logs) -> None:
    keys = MasterKeys(OLD)
    clear = logs.open("clear")
    put_batch(clear, (b"key", b"secret"))
    body = BodyCipher(keys).encrypt(stored(clear)[records.HEADER_BYTES :], former_associated_data(0))
    former = bytearray(records.with_body(stored(clear), body, records.ENCRYPTED))
    former[10] = 1
    log = logs.open(encryption=True, keys=keys, identity=OF)
    log.append_replicated(resealed(former))
    assert use(log, keys).former == 1
    assert rewrap(log, keys, ignore).rewrapped == 1
    assert (use(log, keys).former, use(log, keys).batches) == (0, {key_id(OLD): 1})
    assert everything(log)[0].value == b"secret"
    thief = logs.open("thief", encryption=True, keys=keys, identity=LogIdentity(8, 1))
    thief.append_replicated(log_files(log)[0].read_bytes())
    with pytest.raises(CorruptBatch, match="changed or moved"):
        everything(thief)


def test_a_segment_with_damage_is_left_alone_and_reported(logs: Logs) -> None:
    keys = MasterKeys(OLD)
    log = filled(logs, keys)
    path = log_files(log)[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    keys.switch(MasterKeys(NEW))
    report = rewrap(log, keys, ignore)
    assert len(report.left_alone) == 1
    assert path.name in report.left_alone[0]
    assert path.read_bytes() == data
    assert key_id(OLD) in use(log, keys).batches


def test_batches_under_a_key_that_is_missing_are_left_alone(logs: Logs) -> None:
    log = filled(logs, MasterKeys(OLD))
    log.close()
    keys = MasterKeys(NEW)
    log = logs.open(options=log.options, keys=keys, identity=OF)
    put(log, (b"key", b"new"))
    report = rewrap(log, keys, ignore)
    assert report.rewrapped == 0
    assert report.left_alone
    assert use(log, keys).batches == {UNKNOWN: 12, key_id(NEW): 1}


def test_appends_and_reads_go_on_during_a_rotation(logs: Logs) -> None:
    keys = MasterKeys(OLD)
    log = filled(logs, keys)
    stop, faults = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not stop.is_set():
                put(log, (b"key", b"concurrent"))
                everything(log)
        except BaseException as fault:
            faults.append(fault)

    worker = threading.Thread(target=work)
    worker.start()
    for key in (NEW, NEXT, OLD, NEW):
        keys.switch(MasterKeys(key))
        rewrap(log, keys, ignore)
    stop.set()
    worker.join()
    assert faults == []
    rewrap(log, keys, ignore)
    assert set(use(log, keys).batches) == {key_id(NEW)}
    assert [record.offset for record in everything(log)] == list(range(log.log_end_offset))


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def test_a_key_file_has_the_current_key_first(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# rotated in May\n{NEW.hex()}\n\n  {NEXT.hex().upper()}  # the one before\n")
    assert KeyFile(file).load().ids == (key_id(NEW), key_id(NEXT))
    assert KeyCommand(("cat", str(file))).load().ids == (key_id(NEW), key_id(NEXT))


BAD = {
    "": "has no key",
    "# nothing\n": "has no key",
    "secret-but-no-hex\n": "line 1",
    f"{'00' * 32}\n{'00' * 24}\n": "line 2",
    "00" * 40_000: "more than 65536 bytes",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_bad_keys_are_refused_and_never_shown(text: str) -> None:
    with pytest.raises(EncryptionKeyError, match=BAD[text]) as refused:
        parse_keys(text.encode(), "the key file keys")
    assert "secret" not in str(refused.value)


def test_sources_that_do_not_work_say_why(tmp_path: Path) -> None:
    with pytest.raises(EncryptionKeyError, match="cannot be read: No such file"):
        KeyFile(tmp_path / "none").load()
    with pytest.raises(EncryptionKeyError, match="cannot be run: No such file"):
        KeyCommand((str(tmp_path / "none"),)).load()
    with pytest.raises(EncryptionKeyError, match="exit code 3: no vault"):
        KeyCommand(("sh", "-c", "echo no vault >&2; exit 3")).load()


# ── a whole data directory ───────────────────────────────────────────────────────────────────────


def idle(rotation: KeyRotation) -> bool:
    return rotation.status.phase == IDLE


def test_a_rotation_of_all_logs_of_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD.hex())
    keys = KeyFile(file).load()
    with LogStore(tmp_path / "data", keys=keys) as store:
        for stream in range(3):
            put(store.log(f"s{stream}", 0, LogOptions(encryption=stream < 2), stream_id=stream + 1), (b"k", b"v"))
        rotation = KeyRotation(store, keys, KeyFile(file))
        file.write_text(NEW.hex())
        with pytest.raises(EncryptionKeyError, match=f"does not have the key {key_id(OLD)}"):
            rotation.load()
        file.write_text(f"{NEW.hex()}\n{OLD.hex()}\n")
        loaded = rotation.load()
        assert (loaded.current, loaded.offered) == (key_id(OLD), (key_id(NEW), key_id(OLD)))
        store.close_log("s1", 0)  # as a pause does
        assert rotation.switch().current == key_id(NEW)
        eventually(lambda: idle(rotation), "the rotation ends")
        done = rotation.status
        assert (done.rewrapped, done.closed, done.failures) == (1, 1, ())
        assert done.use is not None
        assert done.use.batches == {key_id(NEW): 1}
        assert done.bytes_done == done.bytes_total > 0
        store.log("s1", 0, LogOptions(encryption=True), stream_id=2).open()
        rotation.switch()
        eventually(lambda: idle(rotation), "the rotation ends")
        assert (rotation.status.rewrapped, rotation.status.closed) == (1, 0)
        rotation.stop()
    with LogStore(tmp_path / "data", keys=MasterKeys(NEW)) as store:
        for stream in range(2):
            log = store.log(f"s{stream}", 0, LogOptions(encryption=True), stream_id=stream + 1)
            assert [record.value for record in everything(log)] == [b"v"]


def test_without_keys_nothing_can_be_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASCULE_ENCRYPTION_KEY", "LIFTBRIDGE_ENCRYPTION_KEY"):
        monkeypatch.delenv(name, raising=False)
    with LogStore(tmp_path) as store:
        rotation = KeyRotation(store, None, EnvironmentKeys())
        assert rotation.status.current is None
        for call in (rotation.load, rotation.switch, rotation.count):
            with pytest.raises(EncryptionKeyError, match="no master key"):
                call()
        rotation.stop()
