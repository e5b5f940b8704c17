"""The settings of a stream: what the creator said wins, what he left out follows the server."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.config import Compression, StreamConfig, StreamOverrides, Sync, load, resolve
from bascule.config.sections.cluster import ClusterConfig
from bascule.config.stream import wire_values
from bascule.config.values.duration import HOUR_NS, MILLISECOND_NS, SECOND_NS
from bascule.errors import CallerError, InvalidConfig, grpc_status
from bascule.proto import api_pb2 as api


def cluster(**flags: object) -> ClusterConfig:
    return load(flags={name.replace("_", "."): value for name, value in flags.items()}, environ={}).cluster


def test_without_overrides_a_stream_follows_the_server() -> None:
    server = cluster(
        streams_retention_max_bytes=1,
        streams_compact_enabled=True,
        streams_sync="always",
        clustering_min_insync_replicas=2,
    )
    stream = resolve(server)
    assert stream.retention_max_bytes == 1
    assert stream.compact_enabled
    assert stream.sync is Sync.ALWAYS
    assert stream.min_insync_replicas == 2
    assert stream.retention_max_age_ns == 168 * HOUR_NS


def test_every_override_replaces_its_default() -> None:
    overrides = StreamOverrides(
        retention_max_bytes=1,
        retention_max_messages=2,
        retention_max_age_ms=1_000_000,
        cleaner_interval_ms=1_000_000,
        segment_max_bytes=3,
        segment_max_age_ms=1_000_000,
        compact_enabled=True,
        compact_max_goroutines=4,
        compact_min_lag_ms=5,
        compact_tombstone_retention_ms=6,
        auto_pause_time_ms=1_000_000,
        auto_pause_disable_if_subscribers=True,
        concurrency_control=True,
        encryption=True,
        compression=Compression.ZSTD,
        sync=Sync.INTERVAL,
        sync_interval_ms=7,
        min_insync_replicas=8,
    )
    assert resolve(ClusterConfig(), overrides) == StreamConfig(
        retention_max_bytes=1,
        retention_max_messages=2,
        retention_max_age_ns=1_000 * SECOND_NS,
        cleaner_interval_ns=1_000 * SECOND_NS,
        segment_max_bytes=3,
        segment_max_age_ns=1_000 * SECOND_NS,
        compact_enabled=True,
        compact_max_goroutines=4,
        compact_min_lag_ns=5 * MILLISECOND_NS,
        compact_tombstone_retention_ns=6 * MILLISECOND_NS,
        auto_pause_time_ns=1_000 * SECOND_NS,
        auto_pause_disable_if_subscribers=True,
        concurrency_control=True,
        encryption=True,
        compression=Compression.ZSTD,
        sync=Sync.INTERVAL,
        sync_interval_ns=7 * MILLISECOND_NS,
        min_insync_replicas=8,
    )


def test_an_explicit_false_differs_from_an_absent_value() -> None:
    server = cluster(streams_compact_enabled=True, streams_encryption=True)
    assert resolve(server, StreamOverrides()).compact_enabled
    stream = resolve(server, StreamOverrides(compact_enabled=False, encryption=False))
    assert not stream.compact_enabled
    assert not stream.encryption


def test_an_explicit_zero_differs_from_an_absent_value() -> None:
    server = cluster(streams_retention_max_bytes=10, streams_auto_pause_time="1m")
    assert resolve(server).retention_max_bytes == 10
    stream = resolve(server, StreamOverrides(retention_max_bytes=0, auto_pause_time_ms=0, retention_max_age_ms=0))
    assert (stream.retention_max_bytes, stream.auto_pause_time_ns, stream.retention_max_age_ns) == (0, 0, 0)


def test_segments_are_as_old_as_the_stream_s_own_retention_unless_said() -> None:
    assert resolve(ClusterConfig()).segment_max_age_ns == 168 * HOUR_NS
    assert resolve(ClusterConfig(), StreamOverrides(retention_max_age_ms=60_000)).segment_max_age_ns == 60 * SECOND_NS
    assert resolve(cluster(streams_segment_max_age="1h")).segment_max_age_ns == HOUR_NS


def test_a_segment_age_below_a_second_is_raised_and_zero_means_never() -> None:
    assert resolve(ClusterConfig(), StreamOverrides(segment_max_age_ms=1)).segment_max_age_ns == SECOND_NS
    assert resolve(cluster(streams_retention_max_age="1ns")).segment_max_age_ns == SECOND_NS
    assert resolve(ClusterConfig(), StreamOverrides(segment_max_age_ms=0)).segment_max_age_ns == 0


def test_a_segment_size_of_zero_means_the_default() -> None:
    assert (
        resolve(ClusterConfig(), StreamOverrides(segment_max_bytes=0)).segment_max_bytes == limits.SEGMENT_BYTES_DEFAULT
    )


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (StreamOverrides(retention_max_bytes=-1), "retentionMaxBytes"),
        (StreamOverrides(retention_max_messages=-1), "retentionMaxMessages"),
        (StreamOverrides(retention_max_age_ms=-1), "retentionMaxAge"),
        (StreamOverrides(retention_max_age_ms=1 << 62), "retentionMaxAge"),
        (StreamOverrides(cleaner_interval_ms=0), "cleanerInterval"),
        (StreamOverrides(segment_max_bytes=1 << 40), "segmentMaxBytes"),
        (StreamOverrides(segment_max_age_ms=-5), "segmentMaxAge"),
        (StreamOverrides(compact_max_goroutines=0), "compactMaxGoroutines"),
        (StreamOverrides(auto_pause_time_ms=-1), "autoPauseTime"),
        (StreamOverrides(min_insync_replicas=0), "minIsr"),
        (StreamOverrides(sync_interval_ms=0), "syncInterval"),
        (StreamOverrides(sync="sometimes"), "sync"),
        (StreamOverrides(sync=""), "sync"),
        (StreamOverrides(compression="lzma"), "compression"),
        (StreamOverrides(compact_min_lag_ms=-1), "compactMinLag"),
        (StreamOverrides(compact_tombstone_retention_ms=-1), "compactTombstoneRetention"),
    ],
)
def test_a_bad_override_names_its_field(overrides: StreamOverrides, field: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolve(ClusterConfig(), overrides)
    assert f"`{field}`" in refused.value.message
    assert isinstance(refused.value, CallerError)
    assert grpc_status(refused.value) == "INVALID_ARGUMENT"


def test_a_bad_word_is_answered_with_the_right_ones() -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolve(ClusterConfig(), StreamOverrides(sync="alway"))
    assert refused.value.message == "`sync` is `alway`"
    assert refused.value.hint == "it must be one of `ack`, `interval`, `always` — did you mean `always`?"


def test_words_are_read_as_in_a_file() -> None:
    found = resolve(ClusterConfig(), StreamOverrides(sync="ALWAYS", compression="zstd"))
    assert found.sync is Sync.ALWAYS
    assert found.compression is Compression.ZSTD


def test_effective_settings_are_shown_as_they_would_be_asked_for() -> None:
    asked = StreamOverrides(
        sync="interval", sync_interval_ms=5, compact_min_lag_ms=7, retention_max_messages=3, encryption=True
    )
    shown = wire_values(resolve(ClusterConfig(), asked))
    assert (shown["sync"], shown["syncInterval"], shown["compactMinLag"]) == ("interval", 5, 7)
    assert (shown["retentionMaxMessages"], shown["encryption"], shown["minIsr"]) == (3, True, 1)
    assert shown["retentionMaxAge"] == 168 * 3_600_000
    assert wire_values(resolve(cluster(streams_retention_max_age="1ns")))["retentionMaxAge"] == 1
    assert set(shown) == set(api.StreamSettings.DESCRIPTOR.fields_by_name)
    assert set(shown) < set(api.CreateStreamRequest.DESCRIPTOR.fields_by_name)


def test_every_setting_of_a_stream_can_be_overridden() -> None:
    names = {item.name.removesuffix("_ms") for item in fields(StreamOverrides)}
    assert names == {item.name.removesuffix("_ns") for item in fields(StreamConfig)}


NUMBERS = [
    item.name for item in fields(StreamOverrides) if item.name.split("_")[-1] in ("ms", "bytes", "messages", "replicas")
]


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1), st.sampled_from(NUMBERS))
def test_any_number_a_client_can_send_resolves_or_is_refused(value: int, name: str) -> None:
    wishes: dict[str, Any] = {name: value}
    try:
        stream = resolve(ClusterConfig(), replace(StreamOverrides(), **wishes))
    except InvalidConfig:
        return
    assert stream.segment_max_bytes > 0
