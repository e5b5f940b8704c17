"""Partitions: one request creates no more than a server can bear, and many requests together do not either."""

from __future__ import annotations

from tests.support.api_client import Api, Status, refused
from tests.support.broker_fixtures import StartBroker, unique_name


def test_one_request_does_not_create_ten_thousand_partitions(api: Api) -> None:
    name = unique_name("wide")
    with refused(Status.INVALID_ARGUMENT, "partitions is 10000, it must be from 1 to 1000 (`streams.partitions.max`)"):
        api.CreateStream(name=name, subject=name, partitions=10_000)
    assert name not in {stream.name for stream in api.FetchMetadata().streamMetadata}


def test_many_requests_do_not_exceed_the_partitions_of_the_cluster(start_broker: StartBroker) -> None:
    broker = start_broker({"streams.partitions.max": 12, "clustering.partitions.max": 20})
    api = broker.api()
    with refused(Status.INVALID_ARGUMENT, "from 1 to 12 (`streams.partitions.max`)"):
        api.CreateStream(name="wide", subject="wide", partitions=13)
    api.CreateStream(name="wide", subject="wide", partitions=12)
    with refused(Status.RESOURCE_EXHAUSTED, "the cluster has 12 of at most 20 partitions: use 8 or less"):
        api.CreateStream(name="next", subject="next", partitions=9)
    calls = [api.future("CreateStream", name=f"s{number}", subject=f"s{number}") for number in range(30)]
    codes = [call.code() for call in calls]
    assert (codes.count(Status.OK), codes.count(Status.RESOURCE_EXHAUSTED)) == (8, 22)
    with refused(Status.ALREADY_EXISTS):
        api.CreateStream(name="wide", subject="wide", partitions=12)
    api.DeleteStream(name="wide")
    api.CreateStream(name="next", subject="next")
    api.close()
