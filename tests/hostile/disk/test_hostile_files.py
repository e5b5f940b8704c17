"""Another user of the broker's machine: data files and the environment of nats-server tell nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.log import LogStore
from bascule.log.disk.operations import PosixDisk
from tests.support.api_client import grpc
from tests.support.broker_process import BrokerProcess

KEY = "0123456789abcdef-is-the-master-k"


def open_to_others(root: Path) -> list[str]:
    """Files and folders that group or others may read, write or enter."""
    paths = [root, *root.rglob("*")]
    return sorted(str(path) for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.mark.usefixtures("no_umask")
def test_all_files_of_a_broker_are_for_its_user_alone(tmp_path: Path) -> None:
    data = tmp_path / "broker" / "data"
    data.mkdir(parents=True, mode=0o777)  # as an earlier version left it
    config = {"cursors.stream.partitions": 1}
    with BrokerProcess(tmp_path / "broker", config=config, env={"BASCULE_ENCRYPTION_KEY": KEY}) as broker:
        api = broker.api()
        api.CreateStream(name="secret", subject="secret", encryption=True, compactEnabled=True)
        api.CreateStream(name="plain", subject="plain", partitions=3)
        api.publish("secret", b"x", key=b"k")
        api.publish("plain", b"x")
        api.SetCursor(stream="plain", partition=0, cursorId="c", offset=0)
        assert open_to_others(broker.data) == []
        api.close()
    assert open_to_others(data) == []


def test_nats_server_does_not_get_the_master_key(tmp_path: Path) -> None:
    secrets = {"BASCULE_ENCRYPTION_KEY": KEY, "LIFTBRIDGE_ENCRYPTION_KEY": KEY, "OTHER_SECRET": KEY}
    with BrokerProcess(tmp_path / "broker", env=secrets) as broker:
        running = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(broker.pid)}
        (nats,) = [pid for pid, command in running.items() if b"nats-server" in command]
        environment = Path(f"/proc/{nats}/environ").read_bytes()
        assert KEY.encode() not in environment
        assert b"PATH=" in environment


def test_nats_server_with_a_configuration_of_the_user_gets_variables_of_the_user(tmp_path: Path) -> None:
    own = tmp_path / "nats.conf"
    own.write_text("listen: 127.0.0.1:-1\nmax_payload: 9437184\nserver_name: $NAME_OF_OURS\n")
    broker = BrokerProcess(
        tmp_path / "broker",
        config={"nats.embedded.config": str(own)},
        env={"NAME_OF_OURS": "ours", "BASCULE_ENCRYPTION_KEY": KEY},
    )
    with broker:
        running = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(broker.pid)}
        (nats,) = [pid for pid, command in running.items() if b"nats-server" in command]
        environment = Path(f"/proc/{nats}/environ").read_bytes()
        assert b"NAME_OF_OURS=ours" in environment
        assert KEY.encode() not in environment


def values(broker: BrokerProcess, stream: str, partition: int) -> list[bytes] | None:
    """What can be read; None for an error."""
    api = broker.api()
    try:
        return [message.value for message in api.read(stream, partition)]
    except grpc.RpcError:
        return None
    finally:
        api.close()


@pytest.mark.parametrize("target", [("bobs", 0), ("orders", 1)], ids=["another stream", "another partition"])
def test_encrypted_files_that_were_moved_to_another_log_are_not_readable(
    tmp_path: Path, target: tuple[str, int]
) -> None:
    """With write access to the disk and rights on one stream, the messages of another one stay secret."""
    stream, partition = target
    with BrokerProcess(tmp_path / "broker", env={"BASCULE_ENCRYPTION_KEY": KEY}) as broker:
        api = broker.api()
        api.CreateStream(name="orders", subject="orders", encryption=True, partitions=2)
        api.CreateStream(name="bobs", subject="bobs", encryption=True)
        api.publish("orders", b"secret", 0)
        api.publish(stream, b"my own", partition)
        api.close()
        broker.stop()
        streams = broker.data / "streams"
        victim, own = streams / "orders" / "0", streams / stream / str(partition)
        shutil.rmtree(own)
        shutil.copytree(victim, own)
        broker.start()
        assert values(broker, "orders", 0) == [b"secret"]
        assert values(broker, stream, partition) in (None, []), "the messages of another log were read"


@pytest.mark.usefixtures("no_umask")
def test_a_store_closes_a_directory_that_was_open_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o755)
    with LogStore(directory) as store:
        store.log("s", 0).open()
        assert open_to_others(directory) == []


@pytest.mark.usefixtures("no_umask")
def test_folders_above_are_private_too(tmp_path: Path) -> None:
    PosixDisk().make_directory(str(tmp_path / "a" / "b" / "c"))
    assert open_to_others(tmp_path / "a") == []
    PosixDisk().make_directory(str(tmp_path / "a" / "b" / "c"))
