"""Options of a read: what each takes, and what is said of a wrong one."""

from __future__ import annotations

import pickle

import pytest

from bascule import limits
from bascule.config.values.duration import SECOND_NS
from bascule.errors import InvalidOption
from bascule.spark.options.declaration import BATCH, STREAMING, declared
from bascule.spark.options.positions import AtCursor, AtOffsets, AtTimestamp, AtTimestamps, Earliest, Latest
from bascule.spark.options.reading import FOREIGN, SourceOptions, source_options

READS_OF_STREAMING_ONLY = {
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "cursor",
    "untilTimestamp",
}


def batch(**given: str) -> SourceOptions:
    return source_options({"stream": "orders", **given}, BATCH)


def streaming(**given: str) -> SourceOptions:
    return source_options({"stream": "orders", **given}, STREAMING)


WRONG = [
    ("servers", "http://here"),
    ("servers", ""),
    ("tls", "perhaps"),
    ("startingOffsets", "newest"),
    ("startingOffsets", "cursor:"),
    ("startingOffsets", '{"orders": {"0": -3}}'),
    ("startingOffsets", '{"orders": {"0": 1.5}}'),
    ("startingOffsets", '{"orders": {"x": 1}}'),
    ("startingOffsets", '{"orders": {}}'),
    ("startingOffsets", '{"orders": {"1": 1, "01": 2}}'),
    ("startingOffsets", "[" * 5000),
    ("startingTimestamp", "yesterday"),
    ("startingTimestamp", "9999-01-01T00:00:00Z"),
    ("startingTimestamp", "-1"),
    ("startingOffsetsByTimestamp", '{"orders": {"0": "soon"}}'),
    ("startingOffsetsByTimestamp", "1763200000000"),
    ("startingOffsetsByTimestampStrategy", "earliest"),
    ("endingOffsets", "earliest"),
    ("endingOffsets", "cursor:mine"),
    ("endingTimestamp", "later"),
    ("untilTimestamp", "later"),
    ("endingOffsetsByTimestamp", "{}"),
    ("maxOffsetsPerTrigger", "0"),
    ("maxOffsetsPerTrigger", "many"),
    ("maxBytesPerTrigger", "-1"),
    ("maxBytesPerTrigger", "lots"),
    ("minOffsetsPerTrigger", "0"),
    ("maxTriggerDelay", "a while"),
    ("maxTriggerDelay", "0"),
    ("minPartitions", "0"),
    ("minPartitions", "1000000"),
    ("gatherRecordsPerTask", "0"),
    ("patience", "soon"),
    ("valueFraming", "kafka"),
    ("valueSchemaIds", "17,x"),
    ("maxRecordsPerPartition", "0"),
    ("maxBytesPerPartition", "0"),
    ("history", ""),
    ("history", "hdfs://lake/orders"),
    ("storageOptions", "AWS_REGION=x"),
    ("storageOptions", '{"AWS_REGION": 1}'),
    ("onDataLoss", "ignore"),
    ("failOnDataLoss", "maybe"),
    ("cursor", ""),
    ("valueFormat", "xml"),
    ("valueSchema", ""),
    ("valueMessage", ""),
    ("valueMode", "dropmalformed"),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda part: part[:30])
def test_a_wrong_value_is_refused_with_its_option_and_what_is_right(name: str, value: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        (streaming if name in READS_OF_STREAMING_ONLY else batch)(**{name: value})
    shown = "***" if name == "storageOptions" else value  # it may be a secret
    assert f"`{name}` is `{shown}`" in refused.value.message
    assert refused.value.hint is not None and refused.value.hint.startswith("it must be ")
    assert refused.value.code == "INVALID_OPTION"


WRONG_STREAMS = [
    ("stream", ""),
    ("subscribe", ","),
    ("subscribePattern", "orders("),
    ("subscribePattern", ""),
    ("subjectPattern", "orders..created"),
    ("subjectPattern", "orders.>.created"),
    ("subjectPattern", "a b"),
    ("assign", "orders"),
    ("assign", '{"orders": []}'),
    ("assign", '{"orders": [-1]}'),
    ("assign", '{"orders": [true]}'),
]


@pytest.mark.parametrize(("name", "value"), WRONG_STREAMS)
def test_a_wrong_choice_of_streams_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f"`{name}` is `"):
        source_options({name: value}, BATCH)


def test_every_option_has_a_wrong_value_tested_or_takes_any_text() -> None:
    tested = {name for name, _ in WRONG + WRONG_STREAMS}
    any_text = {"path", "tlsCa", "tlsCert", "tlsKey", "token"}
    assert {key.name for _, key in declared(SourceOptions)} == tested | any_text


# ── unknown ones ─────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidOption, match="`startingOffset5` is no option") as refused:
        batch(startingOffset5="earliest")
    assert refused.value.hint == "did you mean `startingOffsets`?"


def test_an_option_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(InvalidOption) as refused:
        batch(colour="red")
    assert refused.value.hint is not None and "`subscribePattern`" in refused.value.hint


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_options_of_other_connectors_are_told_what_to_write(name: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        batch(**{name: "x"})
    assert refused.value.hint == FOREIGN[name]


def test_names_are_read_in_any_case() -> None:
    assert batch(STARTINGOFFSETS="earliest", minpartitions="3").parallelism.partitions_min == 3


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(InvalidOption) as refused:
        batch(token="")
    assert "***" in refused.value.message


# ── options that do not go together ──────────────────────────────────────────────────────────────


def test_a_read_is_of_something() -> None:
    with pytest.raises(InvalidOption, match="no option says which streams") as refused:
        source_options({}, BATCH)
    assert refused.value.hint is not None and "`subscribe`" in refused.value.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"stream": "a"}, {"subscribe": "b"}),
        ({"stream": "a"}, {"path": "b"}),
        ({"stream": "a", "startingOffsets": "earliest"}, {"startingTimestamp": "1"}),
        ({"stream": "a", "endingOffsets": "latest"}, {"endingTimestamp": "1"}),
        ({"stream": "a", "onDataLoss": "skip"}, {"failOnDataLoss": "true"}),
    ],
)
def test_two_options_for_one_thing_are_refused(one: dict[str, str], other: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="both say"):
        source_options(one | other, BATCH)


@pytest.mark.parametrize("name", sorted(READS_OF_STREAMING_ONLY))
def test_options_of_streaming_are_refused_in_batch(name: str) -> None:
    with pytest.raises(InvalidOption, match="but this is a batch read"):
        batch(**{name: "1"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_an_end_is_refused_in_streaming(name: str) -> None:
    with pytest.raises(InvalidOption, match="but this is a streaming read"):
        streaming(**{name: "latest"})


def test_a_batch_does_not_begin_at_its_end() -> None:
    for position in ("latest", '{"orders": {"0": -1}}'):
        with pytest.raises(InvalidOption, match="startingOffsets"):
            batch(startingOffsets=position)
    with pytest.raises(InvalidOption, match="endingOffsets"):
        batch(endingOffsets='{"orders": {"0": -2}}')


def test_the_least_of_a_trigger_is_not_above_its_most() -> None:
    with pytest.raises(InvalidOption, match="minOffsetsPerTrigger"):
        streaming(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9")


def test_a_certificate_has_a_key() -> None:
    with pytest.raises(InvalidOption, match="tlsCert"):
        batch(tlsCert="a.pem")


@pytest.mark.parametrize(
    "given",
    [
        {"valueFormat": "json"},
        {"valueSchema": "a INT"},
        {"valueFormat": "avro", "valueSchema": "{}", "valueMessage": "a.B"},
        {"valueFormat": "protobuf", "valueSchema": "a.desc"},
    ],
)
def test_typed_values_have_a_format_and_a_schema(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=r"value(Schema|Message)"):
        batch(**given)


# ── right ones ───────────────────────────────────────────────────────────────────────────────────


def test_defaults_are_those_of_kafkas_connector_but_for_the_bytes_of_a_trigger() -> None:
    read, query = batch(), streaming()
    assert (read.starting, read.ending, query.starting) == (Earliest(), Latest(), Latest())
    assert read.connection.servers == "127.0.0.1:9292"
    assert query.amount.bytes_max == limits.SPARK_TRIGGER_BYTES_DEFAULT
    assert query.amount.offsets_max is None
    assert query.amount.delay_max_ns == 15 * 60 * SECOND_NS
    assert not read.skips_lost


def test_every_way_to_say_where() -> None:
    assert streaming(startingOffsets="cursor:etl").starting == AtCursor("etl")
    assert batch(startingOffsets='{"orders": {"0": 23, "1": -2}}').starting == AtOffsets({"orders": {0: 23, 1: -2}})
    assert batch(startingTimestamp="1763200000000").starting == AtTimestamp(1763200000000_000_000)
    assert batch(startingTimestamp="2025-11-15T09:46:40Z").starting == AtTimestamp(1763200000000_000_000)
    assert batch(startingTimestamp="2025-11-15T10:46:40.000001+01:00").starting == AtTimestamp(1763200000000_001_000)
    assert batch(startingTimestamp="2025-11-15T09:46:40").starting == AtTimestamp(1763200000000_000_000)
    by_timestamp = '{"orders": {"0": 5, "1": "1970-01-01T00:00:01Z"}}'
    assert batch(startingOffsetsByTimestamp=by_timestamp).starting == AtTimestamps(
        {"orders": {0: 5_000_000, 1: SECOND_NS}}
    )
    assert batch(endingOffsets='{"orders": {"0": 7}}').ending == AtOffsets({"orders": {0: 7}})


def test_sizes_and_durations_have_units() -> None:
    amount = streaming(maxBytesPerTrigger="1MiB", maxTriggerDelay="90s").amount
    assert (amount.bytes_max, amount.delay_max_ns) == (1 << 20, 90 * SECOND_NS)
    assert streaming(maxBytesPerTrigger="unlimited").amount.bytes_max == 0


def test_loss_in_both_ways() -> None:
    assert batch(onDataLoss="skip").skips_lost
    with pytest.raises(InvalidOption, match="`onDataLoss` is `archive`, but `history` is missing"):
        batch(onDataLoss="archive")
    falling_back = batch(onDataLoss="archive", history="/lake/orders")
    assert falling_back.falls_back and not falling_back.skips_lost
    assert batch(history="file:///lake/orders").history.path == "/lake/orders"
    assert batch(failOnDataLoss="false").skips_lost
    assert not batch(failOnDataLoss="true").skips_lost


def test_options_travel_to_executors() -> None:
    options = streaming(startingOffsets="cursor:etl", cursor="etl")
    assert pickle.loads(pickle.dumps(options)) == options
