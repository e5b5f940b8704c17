"""Compressed and encrypted logs: what is stored, which keys are needed, and what cannot be moved."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import CorruptBatch, EncryptionKeyError
from bascule.kernels.records import records
from bascule.log import LogOptions, PartitionLog
from bascule.log.disk.encryption import BodyCipher, LogIdentity, former_associated_data
from bascule.log.disk.master_keys import MasterKeys, master_keys_from_environment
from tests.unit.log.log_helpers import (
    Logs,
    batch_positions,
    everything,
    log_files,
    offsets,
    put,
    put_batch,
    resealed,
    stored,
)

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 16

CHOICES: list[dict[str, Any]] = [
    {"compression": "zstd"},
    {"encryption": True},
    {"compression": "zstd", "encryption": True},
]

sealed_ways = pytest.mark.parametrize("choices", CHOICES, ids=["zstd", "encrypted", "both"])

KEY, SECRET = b"customer-4711", b"the secret value "


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASCULE_ENCRYPTION_KEY", "LIFTBRIDGE_ENCRYPTION_KEY", "BASCULE_ENCRYPTION_PREVIOUS_KEYS"):
        monkeypatch.delenv(name, raising=False)


def sealed(logs: Logs, choices: dict[str, Any], keys: MasterKeys | None = None) -> PartitionLog:
    log = logs.open(options=LogOptions(segment_bytes_max=1_000, **choices), keys=keys or MasterKeys(OLD))
    for number in range(6):
        put_batch(log, *[(KEY, SECRET * 10)] * 3, (None, b"%d" % number))
    return log


@sealed_ways
def test_what_was_written_is_read_before_and_after_a_reopen(logs: Logs, choices: dict[str, Any]) -> None:
    log = sealed(logs, choices)
    clear = sealed(logs_beside(logs), {})
    assert everything(log) == everything(clear)
    assert everything(logs.reopen(log, keys=MasterKeys(OLD))) == everything(clear)
    clear.close()


def logs_beside(logs: Logs) -> Logs:
    beside = Logs(logs.root / "beside")
    beside.clock = logs.clock
    return beside


@sealed_ways
def test_no_value_and_no_key_lies_in_the_clear(logs: Logs, choices: dict[str, Any]) -> None:
    log = sealed(logs, choices)
    data = stored(log)
    assert SECRET * 2 not in data
    if choices.get("encryption"):
        assert SECRET not in data
        assert KEY not in data


def attributes(log: PartitionLog) -> set[int]:
    found = set()
    for path in log_files(log):
        data = path.read_bytes()
        found |= {records.read_header(data, position).attributes for position in batch_positions(path)}
    return found


def test_compression_makes_the_log_smaller_and_marks_its_batches(logs: Logs) -> None:
    log = sealed(logs, {"compression": "zstd"})
    assert attributes(log) == {records.CODEC_ZSTD}
    assert log.size_bytes < 6 * 3 * len(SECRET) * 10 / 2


def test_what_does_not_get_smaller_is_stored_as_it_is(logs: Logs) -> None:
    log = logs.open(compression="zstd")
    put(log, (None, b"short"))
    put(log, (None, bytes(number * 167 % 251 for number in range(200))))
    assert attributes(log) == {records.CODEC_NONE}
    assert offsets(log) == [0, 1]


def test_both_means_compressed_first_and_then_encrypted(logs: Logs) -> None:
    log = sealed(logs, {"compression": "zstd", "encryption": True})
    encrypted = sealed(logs_beside(logs), {"encryption": True})
    assert attributes(log) == {records.CODEC_ZSTD | records.ENCRYPTED}
    assert log.size_bytes < encrypted.size_bytes
    encrypted.close()


def test_a_log_may_change_its_mind(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, SECRET * 20))
    log.close()
    for choices in (*CHOICES, {}):
        log = logs.open(options=LogOptions(**choices), keys=MasterKeys(OLD))
        put(log, (None, SECRET * 20))
        log.close()
    log = logs.open(keys=MasterKeys(OLD))
    assert [record.value for record in everything(log)] == [SECRET * 20] * 5
    assert attributes(log) == {0, 1, 8, 9}


def test_equal_records_have_different_ciphertexts(logs: Logs) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put(log, *[(KEY, SECRET)] * 2)
    first, second = batch_positions(log_files(log)[0])
    data = log_files(log)[0].read_bytes()
    assert data[first + 56 + 41 : second] != data[second + 56 + 41 :]


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 15, 17, 24, 31, 33, 64])
def test_a_key_of_a_bad_size_is_refused_with_the_text_clients_look_for(size: int) -> None:
    with pytest.raises(EncryptionKeyError, match="invalid AES key size"):
        MasterKeys(b"k" * size)
    with pytest.raises(EncryptionKeyError, match="invalid AES key size"):
        MasterKeys(OLD, [b"k" * size])


@pytest.mark.parametrize("size", [16, 32])
def test_keys_of_16_and_32_bytes_do(logs: Logs, size: int) -> None:
    log = sealed(logs, {"encryption": True}, MasterKeys(b"k" * size))
    assert len(everything(log)) == 24


def test_encryption_without_a_key_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(EncryptionKeyError, match="invalid AES key size"):
        PartitionLog(str(tmp_path / "log"), LogOptions(encryption=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keys", [None, MasterKeys(OTHER)], ids=["missing", "wrong"])
def test_an_encrypted_log_without_its_key_says_which_key_is_needed(logs: Logs, keys: MasterKeys | None) -> None:
    log = sealed(logs, {"encryption": True})
    log.close()
    log = logs.open(keys=keys)
    assert log.log_end_offset == 24, "it opens: headers are in the clear"
    with pytest.raises(EncryptionKeyError) as caught:
        everything(log)
    assert "BASCULE_ENCRYPTION" in str(caught.value.hint)


def test_a_log_without_the_key_takes_the_leaders_bytes_unread(logs: Logs) -> None:
    leader = sealed(logs, {"encryption": True})
    follower = logs.open("follower")
    follower.append_replicated(stored(leader))
    assert stored(follower) == stored(leader)


@pytest.mark.parametrize("name", ["BASCULE_ENCRYPTION_KEY", "LIFTBRIDGE_ENCRYPTION_KEY"])
def test_the_key_comes_from_the_environment(logs: Logs, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "e" * 32)
    log = logs.open(encryption=True)
    put(log, (KEY, SECRET))
    log.close()
    assert everything(logs.open(keys=MasterKeys(b"e" * 32)))[0].value == SECRET


def test_our_own_variable_comes_before_the_inherited_one() -> None:
    keys = master_keys_from_environment({b"BASCULE_ENCRYPTION_KEY": NEW, b"LIFTBRIDGE_ENCRYPTION_KEY": OLD})
    assert keys is not None
    assert keys.unwrap(MasterKeys(NEW).wrap(b"d" * 32)) == b"d" * 32
    with pytest.raises(EncryptionKeyError):
        keys.unwrap(MasterKeys(OLD).wrap(b"d" * 32))


def test_raw_bytes_of_any_kind_are_a_key() -> None:
    raw = bytes(range(200, 232))
    keys = master_keys_from_environment({b"BASCULE_ENCRYPTION_KEY": raw})
    assert keys is not None
    assert keys.unwrap(MasterKeys(raw).wrap(b"d" * 32)) == b"d" * 32


def test_previous_keys_are_hexadecimal_in_the_environment() -> None:
    previous = b"%s, %s" % (OLD.hex().encode(), OTHER.hex().encode())
    keys = master_keys_from_environment({b"BASCULE_ENCRYPTION_KEY": NEW, b"BASCULE_ENCRYPTION_PREVIOUS_KEYS": previous})
    assert keys is not None
    for key in (NEW, OLD, OTHER):
        assert keys.unwrap(MasterKeys(key).wrap(b"d" * 32)) == b"d" * 32
    with pytest.raises(EncryptionKeyError, match="not hexadecimal"):
        master_keys_from_environment({b"BASCULE_ENCRYPTION_KEY": NEW, b"BASCULE_ENCRYPTION_PREVIOUS_KEYS": b"zz"})


@pytest.mark.parametrize("previous", ["", "nonsense"])
def test_a_bad_key_in_the_environment_is_harmless_while_encryption_is_off(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, previous: str
) -> None:
    monkeypatch.setenv("BASCULE_ENCRYPTION_KEY", "short" if not previous else "k" * 32)
    monkeypatch.setenv("BASCULE_ENCRYPTION_PREVIOUS_KEYS", previous)
    log = logs.open(compression="zstd")
    put(log, (KEY, SECRET))
    assert everything(log)[0].value == SECRET
    with pytest.raises(EncryptionKeyError):
        logs.open("encrypted", encryption=True)
    assert not (logs.root / "encrypted").exists()


# ── rotation ─────────────────────────────────────────────────────────────────────────────────────


def test_previous_keys_open_what_they_sealed_and_new_batches_use_the_new_key(logs: Logs) -> None:
    log = sealed(logs, {"encryption": True}, MasterKeys(OLD))
    log = logs.reopen(log, keys=MasterKeys(NEW, [OLD]))
    put(log, (KEY, b"under the new key"))
    assert len(everything(log)) == 25
    log.close()
    log = logs.open(keys=MasterKeys(NEW))
    found = log.read(24, committed=False)
    assert found is not None
    assert found.records()[0].value == b"under the new key"
    with pytest.raises(EncryptionKeyError):
        everything(log)


# ── what cannot be moved or changed ──────────────────────────────────────────────────────────────


def moved(batch: bytes, base_offset: int) -> bytes:
    data = bytearray(batch)
    struct.pack_into("<q", data, 16, base_offset)
    return resealed(data)


def test_a_ciphertext_that_was_moved_to_another_offset_is_refused(logs: Logs) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put(log, (KEY, b"first"))
    log.append_replicated(moved(stored(log), 1))
    assert log.log_end_offset == 2
    with pytest.raises(CorruptBatch, match="changed or moved"):
        everything(log)
    found = log.read(0, committed=False, bytes_max=1)
    assert found is not None
    assert found.records()[0].value == b"first"


@pytest.mark.parametrize(
    "other", [LogIdentity(8, 1), LogIdentity(7, 2), LogIdentity()], ids=["stream", "partition", "no"]
)
def test_a_ciphertext_that_was_moved_to_another_log_is_refused(logs: Logs, other: LogIdentity) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD), identity=LogIdentity(7, 1))
    put(log, (KEY, SECRET))
    thief = logs.open("other", encryption=True, keys=MasterKeys(OLD), identity=other)
    thief.append_replicated(stored(log))
    with pytest.raises(CorruptBatch, match="changed or moved"):
        everything(thief)
    replica = logs.open("replica", encryption=True, keys=MasterKeys(OLD), identity=LogIdentity(7, 1))
    replica.append_replicated(stored(log))
    assert everything(replica)[0].value == SECRET


HEADER_FIELDS = {"count": 12, "last_delta": 24, "body_bytes": 28, "leader_epoch": 32, "first": 40, "max": 48}


@pytest.mark.parametrize("position", HEADER_FIELDS.values(), ids=HEADER_FIELDS)
def test_a_changed_header_is_refused_although_its_checksum_fits(logs: Logs, position: int) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put_batch(log, (KEY, SECRET), (KEY, SECRET))
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    sealer = log.sealer
    with pytest.raises(ValueError, match="changed or moved"):
        sealer.open(resealed(data))


def test_batches_of_the_former_format_are_still_read(logs: Logs) -> None:
    """Version 1 binds a batch to its offset alone."""
    keys = MasterKeys(OLD)
    clear = logs.open("clear")
    put_batch(clear, (KEY, SECRET), (None, b"second"))
    batch = stored(clear)
    body = BodyCipher(keys).encrypt(batch[records.HEADER_BYTES :], former_associated_data(0))
    former = bytearray(records.with_body(batch, body, records.ENCRYPTED))
    assert former[10] == 2
    former[10] = 1
    log = logs.open(encryption=True, keys=keys, identity=LogIdentity(7, 1))
    log.append_replicated(resealed(former))
    put(log, (KEY, b"in the new format"))
    assert [record.value for record in everything(log)] == [SECRET, b"second", b"in the new format"]
    former[10] = 2
    with pytest.raises(ValueError, match="changed or moved"):
        log.sealer.open(resealed(former))


def test_only_encrypted_batches_have_the_new_version(logs: Logs) -> None:
    versions = []
    for name, choices in (("plain", {}), ("zstd", {"compression": "zstd"}), ("encrypted", {"encryption": True})):
        log = logs.open(name, keys=MasterKeys(OLD), **choices)
        put(log, (KEY, SECRET * 100))
        versions.append(records.read_header(stored(log)).version)
    assert versions == [1, 1, 2]


@pytest.mark.parametrize("position", [-1, -20, 56 + 41, 56 + 45])
def test_a_changed_ciphertext_is_refused_although_its_checksum_fits(logs: Logs, position: int) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put(log, (KEY, SECRET))
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(resealed(data))
    with pytest.raises(CorruptBatch, match="changed or moved"):
        everything(log)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x28", b"\x28" + b"w" * 60, b"\xff" * 50])
def test_an_encrypted_body_that_is_too_short_is_refused(logs: Logs, body: bytes) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put(log, (KEY, SECRET))
    path = log_files(log)[0]
    path.write_bytes(records.with_body(path.read_bytes(), body, records.ENCRYPTED))
    log.close()
    Path(log.directory, "checkpoint").unlink()
    log = logs.open(keys=MasterKeys(OLD))
    with pytest.raises(CorruptBatch):
        everything(log)


@pytest.mark.parametrize("body", [b"", b"no zstd frame", b"\x28\xb5\x2f\xfd"])
def test_a_compressed_body_that_is_none_is_refused(logs: Logs, body: bytes) -> None:
    log = sealed(logs, {"compression": "zstd"})
    log.close()
    path = log_files(log)[0]
    batch = path.read_bytes()[: records.read_header(path.read_bytes()).length]
    path.write_bytes(records.with_body(batch, body, records.CODEC_ZSTD))
    Path(log.directory, "checkpoint").unlink()
    log = logs.open()
    with pytest.raises(CorruptBatch):
        log.read(0, committed=False, bytes_max=1).records()  # type: ignore[union-attr]


def test_a_body_that_claims_to_be_huge_is_not_unpacked(logs: Logs) -> None:
    log = sealed(logs, {"compression": "zstd"})
    log.close()
    path = log_files(log)[0]
    data = bytearray(path.read_bytes()[: records.read_header(path.read_bytes()).length])
    struct.pack_into("<I", data, 28, 0xFFFFFFFF)
    path.write_bytes(resealed(data))
    Path(log.directory, "checkpoint").unlink()
    log = logs.open()
    with pytest.raises(CorruptBatch, match="larger than a batch may be"):
        log.read(0, committed=False, bytes_max=1).records()  # type: ignore[union-attr]


def test_a_lookup_by_time_that_meets_a_batch_it_cannot_open_says_so(logs: Logs) -> None:
    log = logs.open(encryption=True, keys=MasterKeys(OLD))
    put(log, (KEY, SECRET), timestamp=10)
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(resealed(data))
    with pytest.raises(CorruptBatch):
        log.earliest_offset_at(5)
