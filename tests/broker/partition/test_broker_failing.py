"""A change of the metadata that fails with an unexpected exception is retried until it succeeds, and a metric counts it meanwhile."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.api_client import Api, grpc, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.monitoring import scrape
from tests.support.waiting import eventually

FAULTS = """
import os
from bascule.partition.auto_pause import AutoPause
from bascule.partition.stream_data import StreamData

def break_at(owner, name, stream_of):
    works = getattr(owner, name)
    def broken(self, argument, *more):
        if stream_of(argument) == "faulty" and os.path.exists(os.path.join(os.environ["FAULTS"], name)):
            raise RuntimeError(f"injected into {name}")
        return works(self, argument, *more)
    setattr(owner, name, broken)

break_at(StreamData, "claim", lambda stream: stream.name)
break_at(StreamData, "delete_stream", lambda stream: stream)
break_at(StreamData, "close_log", lambda stream: stream)
break_at(AutoPause, "watch", lambda local: local.stream)
"""
"""What a broker imports before anything else. A file in $FAULTS that is named after a method lets it fail for the stream `faulty`."""


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    directory = tmp_path / "faults"
    (directory / "site").mkdir(parents=True)
    (directory / "site" / "sitecustomize.py").write_text(FAULTS, "utf-8")
    return directory


@pytest.fixture
def broker(start_broker: StartBroker, faults: Path) -> BrokerProcess:
    paths = [str(faults / "site"), str(ROOT / "src")]
    env = {"FAULTS": str(faults), "PYTHONPATH": os.pathsep.join(paths)}
    return start_broker({"http.listen": "127.0.0.1:0"}, env=env)


def failing(broker: BrokerProcess) -> float:
    return scrape(broker).value("bascule_partitions_failing")


def until_failing(broker: BrokerProcess, count: int) -> None:
    eventually(lambda: failing(broker) == count, f"{count} partitions fail")


def attempts(broker: BrokerProcess, point: str) -> int:
    return broker.said().count(f"Traceback: RuntimeError('injected into {point}')")


@pytest.mark.parametrize("point", ["claim", "watch"])
def test_a_partition_that_could_not_be_started_is_started_by_a_retry(
    broker: BrokerProcess, faults: Path, point: str
) -> None:
    """`claim` fails before anything runs, `watch` when the partition runs already by half."""
    with closing(broker.api()) as api:
        (faults / point).touch()
        with refused(grpc.StatusCode.INTERNAL, "cannot start its partition"):
            api.CreateStream(name="faulty", subject="faulty", partitions=2)
        until_failing(broker, 2)
        eventually(lambda: attempts(broker, point) >= 4, "it was tried 4 times")
        works(api, "other")
        assert failing(broker) == 2
        (faults / point).unlink()
        until_failing(broker, 0)
        for partition in range(2):
            assert api.publish("faulty", b"x", partition, ackPolicy=pb.ALL).offset == 0
            assert [message.value for message in api.read("faulty", partition)] == [b"x"]


def test_the_next_change_of_the_partition_ends_the_wait(broker: BrokerProcess, faults: Path) -> None:
    with closing(broker.api()) as api:
        api.CreateStream(name="faulty", subject="faulty")
        api.publish("faulty", b"first", ackPolicy=pb.ALL)
        (faults / "close_log").touch()
        api.PauseStream(name="faulty")
        eventually(lambda: attempts(broker, "close_log") >= 2, "it was tried 2 times")
        assert failing(broker) == 1
        (faults / "close_log").unlink()
        assert api.publish("faulty", b"second", ackPolicy=pb.ALL).offset == 1  # resumes it
        until_failing(broker, 0)
        assert [message.value for message in api.read("faulty")] == [b"first", b"second"]


def test_a_stream_whose_files_could_not_be_deleted_is_deleted_by_a_retry(broker: BrokerProcess, faults: Path) -> None:
    with closing(broker.api()) as api:
        api.CreateStream(name="faulty", subject="faulty")
        api.publish("faulty", b"x", ackPolicy=pb.ALL)
        (faults / "delete_stream").touch()
        api.DeleteStream(name="faulty")
        until_failing(broker, 1)
        assert (broker.data / "streams" / "faulty").exists()
        (faults / "delete_stream").unlink()
        until_failing(broker, 0)
        assert not (broker.data / "streams" / "faulty").exists()


def works(api: Api, stream: str) -> None:
    api.CreateStream(name=stream, subject=stream)
    assert api.publish(stream, b"x", ackPolicy=pb.ALL).offset == 0
