"""A server's configuration from flags, environment, file and defaults; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.config import KEYS, Compression, ServerConfig, Sync, load, load_with_sources
from bascule.config.sections.cluster import PublishAckPolicy
from bascule.config.sections.node import Level
from bascule.config.values.duration import HOUR_NS, MINUTE_NS, SECOND_NS
from bascule.errors import InvalidConfig

# ── precedence ───────────────────────────────────────────────────────────────────────────────────


def write(directory: Path, text: str) -> Path:
    path = directory / "bascule.yaml"
    path.write_text(text, "utf-8")
    return path


def test_no_file_gives_the_defaults() -> None:
    assert load(environ={}) == ServerConfig()


def test_the_defaults_are_the_documented_ones() -> None:
    config = ServerConfig()
    cluster = config.cluster
    assert config.logging.level is Level.INFO
    assert config.metadata.cache_max_age_ns == 2 * MINUTE_NS
    assert (config.batch.max_messages, config.batch.max_time_ns) == (1024, 0)
    assert config.nats.servers == ("nats://127.0.0.1:4222",)
    assert not config.nats.runs_embedded
    assert not config.tls.is_on
    assert not config.telemetry.enabled
    assert cluster.replication.namespace == "bascule-default"
    assert cluster.replication.replica_max_lag_time_ns == 5 * SECOND_NS
    assert cluster.replication.replica_max_idle_wait_ns == 2 * SECOND_NS
    assert cluster.replication.replica_fetch_timeout_ns == 3 * SECOND_NS
    assert cluster.replication.min_insync_replicas == 1
    assert cluster.replication.replication_max_bytes == 1_048_576
    assert cluster.streams.retention_max_age_ns == 168 * HOUR_NS
    assert cluster.streams.segment_max_bytes == 268_435_456
    assert cluster.streams.cleaner_interval_ns == 5 * MINUTE_NS
    assert (cluster.streams.sync, cluster.streams.sync_interval_ns) == (Sync.ACK, SECOND_NS)
    assert cluster.streams.compression is Compression.NONE
    assert cluster.streams.compact_tombstone_retention_ns == 24 * HOUR_NS
    assert cluster.activity.stream_publish_ack_policy is PublishAckPolicy.ALL
    assert (cluster.cursors.stream_partitions, cluster.cursors.stream_replication_factor) == (1, -1)
    assert cluster.groups.consumer_timeout_ns == 15 * SECOND_NS


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "port: 1")
    environ = {"BASCULE_PORT": "2"}
    assert load(environ={}).listener.port is None
    assert load(file, environ={}).listener.port == 1
    assert load(file, environ=environ).listener.port == 2
    assert load(file, {"port": 3}, environ).listener.port == 3


def test_a_flag_that_was_not_given_sets_nothing() -> None:
    flags: dict[str, object] = {"port": None, "nats.servers": [], "clustering.raft.bootstrap.peers": ()}
    assert load(flags=flags, environ={}) == ServerConfig()


def test_settings_say_where_each_value_came_from(tmp_path: Path) -> None:
    file = write(tmp_path, "host: localhost\nport: 1\nlogging.level: debug")
    loaded = load_with_sources(file, {"data.dir": tmp_path}, {"LIFTBRIDGE_PORT": "2"})
    sources = {setting.key.name: setting.source for setting in loaded.settings}
    assert sources["host"] == f"{file}:1"
    assert sources["logging.level"] == f"{file}:3"
    assert sources["port"] == "environment variable LIFTBRIDGE_PORT"
    assert sources["data.dir"] == "flag --data-dir"
    assert sources["streams.sync"] == "default"
    assert len(sources) == len(KEYS)


def test_the_command_line_of_the_gufo_harness_loads(tmp_path: Path) -> None:
    file = write(tmp_path, "listen: 127.0.0.1:9292\ncursors: {stream.auto.pause.time: 0, stream.partitions: 1}")
    flags = {"data.dir": tmp_path, "nats.embedded": True, "clustering.raft.bootstrap.seed": True}
    config = load(file, flags, {})
    assert config.listener.advertise(bound_port=9292, machine_name="box").host == "127.0.0.1"
    assert (config.cluster.cursors.stream_partitions, config.cluster.cursors.stream_auto_pause_time_ns) == (1, 0)
    assert config.nats.runs_embedded
    assert config.node.raft_bootstrap_seed


# ── environment ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prefix", ["BASCULE_", "LIFTBRIDGE_"])
@pytest.mark.parametrize("name", sorted(KEYS))
def test_every_key_can_be_set_by_environment(prefix: str, name: str) -> None:
    # No key takes a NUL, so a refusal that names the variable proves that it was read.
    variable = prefix + name.upper().replace(".", "_")
    with pytest.raises(InvalidConfig) as refused:
        load(environ={variable: "\0"})
    assert variable in refused.value.message
    assert f"`{name}`" in refused.value.message


def test_no_two_keys_share_a_variable() -> None:
    assert len({key.environment for key in KEYS.values()}) == len(KEYS)


def test_our_variable_wins_over_liftbridge_s() -> None:
    assert load(environ={"LIFTBRIDGE_PORT": "1", "BASCULE_PORT": "2"}).listener.port == 2


def test_an_empty_variable_counts_as_unset() -> None:
    assert load(environ={"BASCULE_PORT": "", "LIFTBRIDGE_PORT": "1"}).listener.port == 1


def test_the_environment_works_without_a_file() -> None:
    config = load(environ={"LIFTBRIDGE_LOGGING_LEVEL": "debug", "BASCULE_STREAMS_RETENTION_MAX_AGE": "1h"})
    assert config.logging.level is Level.DEBUG
    assert config.cluster.streams.retention_max_age_ns == HOUR_NS


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("BASCULE_STREAM_SYNC", "BASCULE_STREAMS_SYNC"),
        ("BASCULE_DATADIR", "BASCULE_DATA_DIR"),
        ("BASCULE_ENCRYPTION_KEYS", "BASCULE_ENCRYPTION_KEY"),
        ("BASCULE_NATS_COLOUR", "config reference"),
    ],
)
def test_a_misspelt_variable_is_refused_with_a_suggestion(variable: str, suggestion: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(environ={variable: "x"})
    assert variable in refused.value.message
    assert suggestion in (refused.value.hint or "")


@pytest.mark.parametrize(
    "variable",
    ["BASCULE_ENCRYPTION_KEY", "BASCULE_ENCRYPTION_PREVIOUS_KEYS", "BASCULE_QX", "LIFTBRIDGE_STREAM_SYNC", "HOME"],
)
def test_variables_that_are_no_keys_are_left_alone(variable: str) -> None:
    assert load(environ={variable: "x"}) == ServerConfig()


def test_what_kubernetes_sets_beside_a_service_of_our_name_is_left_alone() -> None:
    environ = {
        "BASCULE_PORT": "tcp://10.0.0.1:9292",
        "BASCULE_PORT_9292_TCP": "tcp://10.0.0.1:9292",
        "BASCULE_PORT_9292_TCP_ADDR": "10.0.0.1",
        "BASCULE_SERVICE_HOST": "10.0.0.1",
        "BASCULE_SERVICE_PORT_GRPC": "9292",
        "BASCULE_NATS_SERVICE_HOST": "10.0.0.2",
    }
    assert load(environ=environ) == ServerConfig()


# ── flags ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given_servers",
    [
        ["nats://a:4222", "nats://b:4222"],
        ["nats://a:4222,nats://b:4222"],
        [" nats://a:4222 , nats://b:4222 "],
        ["nats://a:4222", " nats://b:4222,"],
        ["a:4222", "b:4222", "nats://a:4222"],
        "nats://a:4222,, nats://b:4222",
    ],
)
def test_nats_servers_are_normalised(given_servers: object) -> None:
    assert load(flags={"nats.servers": given_servers}, environ={}).nats.servers == ("nats://a:4222", "nats://b:4222")


@pytest.mark.parametrize(
    "bad", [",", "http://a:1", "nats://", "nats://a:x", "nats://a:99999", "na ts://a", "nats://[::1:4222"]
)
def test_a_bad_nats_server_is_refused(bad: str) -> None:
    with pytest.raises(InvalidConfig, match="nats\\.servers"):
        load(flags={"nats.servers": [bad]}, environ={})


def test_an_embedded_config_implies_an_embedded_server(tmp_path: Path) -> None:
    assert load(flags={"nats.embedded.config": tmp_path / "n.conf"}, environ={}).nats.runs_embedded


def test_a_flag_for_an_unknown_key_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="did you mean `data\\.dir`"):
        load(flags={"data.dirr": "x"}, environ={})


def test_a_list_for_a_key_that_takes_one_value_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="one value, not a list"):
        load(flags={"host": ["a", "b"]}, environ={})


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "-1"),
        ("port", "65536"),
        ("port", "9292.0"),
        ("port", "0x10"),
        ("listen", "localhost"),
        ("host", "a:1"),
        ("logging.level", "loud"),
        ("logging.raft", "maybe"),
        ("batch.max.messages", "0"),
        ("batch.max.time", "-1s"),
        ("metadata.cache.max.age", "2 minutes"),
        ("streams.retention.max.bytes", "-1"),
        ("streams.retention.max.bytes", "9223372036854775808"),
        ("streams.segment.max.bytes", "3GiB"),
        ("streams.cleaner.interval", "0"),
        ("streams.sync", "never"),
        ("streams.sync.interval", "0"),
        ("streams.sync.interval", "4ms"),
        ("streams.cleaner.interval", "99ms"),
        ("streams.segment.max.age", "999ms"),
        ("streams.auto.pause.time", "1ms"),
        ("cursors.stream.auto.pause.time", "99ms"),
        ("streams.compression", "lz4"),
        ("streams.compact.max.goroutines", "0"),
        ("clustering.server.id", "a.b."),
        ("clustering.server.id", "a b"),
        ("clustering.namespace", "a/b"),
        ("clustering.namespace", "x" * 129),
        ("clustering.namespace", "*"),
        ("clustering.raft.bootstrap.peers", "a,b/c"),
        ("clustering.replica.max.lag.time", "0"),
        ("clustering.replica.max.leader.timeout", "0"),
        ("clustering.replica.fetch.timeout", "-3s"),
        ("clustering.min.insync.replicas", "0"),
        ("clustering.replication.max.bytes", "1GiB"),
        ("activity.stream.publish.ack.policy", "some"),
        ("cursors.stream.replication.factor", "0"),
        ("cursors.stream.replication.factor", "-2"),
        ("groups.consumer.timeout", "0"),
        ("telemetry.interval.seconds", "1h"),
    ],
)
def test_a_value_out_of_range_names_key_value_source_and_what_is_right(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(flags={name: text}, environ={})
    assert f"`{name}`" in refused.value.message
    assert text[:70] in refused.value.message
    assert "flag" in refused.value.message
    assert (refused.value.hint or "").startswith("it must be ")


def test_a_word_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(InvalidConfig, match="did you mean `interval`"):
        load(flags={"streams.sync": "intervall"}, environ={})


def test_a_secret_is_shown_nowhere(tmp_path: Path) -> None:
    file = write(tmp_path, "nats: {user: me, password: hunter2, servers: 'nats://me:hunter2@a:1'}")
    loaded = load_with_sources(file, environ={})
    assert loaded.config.nats.password == "hunter2"
    shown = [setting.key.show(setting.value) for setting in loaded.settings]
    assert "hunter2" not in "".join(shown)
    assert "password" not in repr(loaded.config.nats)
    with pytest.raises(InvalidConfig) as refused:
        load(flags={"nats.servers": "http://me:hunter2@a:1"}, environ={})
    assert "hunter2" not in str(refused.value)


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=40))
def test_any_text_for_any_key_loads_or_is_refused(name: str, text: str) -> None:
    try:
        load(flags={name: text}, environ={})
    except InvalidConfig as refused:
        assert refused.hint


@pytest.mark.parametrize("name", sorted(KEYS))
def test_a_default_reads_back_as_itself(name: str) -> None:
    key = KEYS[name]
    if key.default is not None:
        assert key.kind.parse(key.kind.show(key.default)) == key.default


STORED = {
    "tls.cert": "a",
    "tls.key": "b",
    "tls.client.auth.enabled": True,
    "tls.client.authz.enabled": True,
    "security.policies.source": "cluster",
    "security.policies.admins": "root",
}

# ── between keys ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("flags", "fragment"),
    [
        ({"tls.cert": "a"}, "`tls.key` is missing"),
        ({"tls.key": "a"}, "`tls.cert` is missing"),
        ({"nats.tls.cert": "a"}, "`nats.tls.key` is missing"),
        ({"nats.tls.key": "a"}, "`nats.tls.cert` is missing"),
        ({"nats.password": "a"}, "`nats.password` is set without `nats.user`"),
        ({"nats.user": "a", "nats.token": "b"}, "More than one login for NATS is set"),
        ({"nats.nkey.seed": "/a", "nats.creds": "/b"}, "More than one login for NATS is set"),
        ({"nats.servers": "nats://a,wss://b"}, "over WebSockets is not supported"),
        ({"tls.client.auth.enabled": True}, "need TLS"),
        ({"tls.client.authz.enabled": True}, "Authorization needs client certificates"),
        (
            {"tls.cert": "a", "tls.key": "b", "tls.client.auth.enabled": True, "tls.client.authz.enabled": True},
            "Authorization needs a policy",
        ),
        ({"security.policies.admins": "root"}, "only if the cluster stores the policy"),
        (
            {"security.policies.source": "cluster", "security.policies.admins": "root"},
            "without authorization has no effect",
        ),
        (STORED | {"tls.client.authz.policy": "/p"}, "from the cluster and from a file"),
        (STORED | {"tls.client.authz.model": "/m"}, "from the cluster and from a file"),
        ({key: value for key, value in STORED.items() if key != "security.policies.admins"}, "No user could grant"),
        ({"clustering.replica.max.idle.wait": "5s"}, "idle follower would count as lagging"),
        ({"clustering.replica.max.lag.time": "2s"}, "idle follower would count as lagging"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(flags: dict[str, object], fragment: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(flags=flags, environ={})
    assert fragment in refused.value.message
    assert "from flag" in refused.value.message
    assert refused.value.hint


def test_nats_login_and_tls_are_taken(tmp_path: Path) -> None:
    file = write(tmp_path, "nats: {user: u, password: 0123, tls: {cert: /c.pem, key: /k.pem, ca: /ca.pem}}")
    nats = load(file, environ={}).nats
    assert (nats.user, nats.password) == ("u", "0123")
    assert (nats.tls_cert, nats.tls_key, nats.tls_ca) == (Path("/c.pem"), Path("/k.pem"), Path("/ca.pem"))


def test_tls_keys_and_client_certificates_are_taken(tmp_path: Path) -> None:
    text = "tls: {key: /k, cert: /c, client: {auth: {enabled: true, ca: /a}, authz: {enabled: true, model: /m, policy: /p}}}"
    tls = load(write(tmp_path, text), environ={}).tls
    assert tls.is_on
    assert (tls.client_auth_enabled, tls.client_auth_ca) == (True, Path("/a"))
    assert (tls.client_authz_enabled, tls.client_authz_model, tls.client_authz_policy) == (True, Path("/m"), Path("/p"))


# ── the data directory ───────────────────────────────────────────────────────────────────────────


def test_the_data_directory_outlives_a_reboot_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert ServerConfig().data_dir == Path("/home/ada/.local/share/bascule/bascule-default")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert ServerConfig().data_dir == Path("/home/ada/.local/share/bascule/bascule-default")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    config = load(flags={"clustering.namespace": "red"}, environ={})
    assert config.data_dir == Path("/data/bascule/red")


def test_the_data_directory_is_the_one_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert load(flags={"data.dir": "/srv/b"}, environ={}).data_dir == Path("/srv/b")
    assert load(environ={"BASCULE_DATA_DIR": "~/b"}).data_dir == Path("/home/ada/b")


def test_a_policy_that_the_cluster_stores_has_administrators() -> None:
    config = load(flags=STORED | {"security.policies.admins": "root, Jane Doe,role:ops,root"}, environ={})
    assert config.security.policies_source == "cluster"
    assert config.security.policies_admins == ("root", "Jane Doe", "role:ops")
    for bad in ("*", "role:", 'a"b', "x" * 257, "a\tb"):
        with pytest.raises(InvalidConfig, match=r"security\.policies\.admins"):
            load(flags=STORED | {"security.policies.admins": bad}, environ={})


# ── what Liftbridge's files and variables have ───────────────────────────────────────────────────


def test_dots_in_names_become_dashes_with_a_warning() -> None:
    flags = {
        "clustering.server.id": "node-0.liftbridge.svc",
        "clustering.namespace": "my.ns",
        "clustering.raft.bootstrap.peers": "node-1.liftbridge.svc node-2",
    }
    loaded = load_with_sources(flags=flags, environ={})
    assert loaded.config.node.server_id == "node-0-liftbridge-svc"
    assert loaded.config.cluster.replication.namespace == "my-ns"
    assert loaded.config.node.raft_bootstrap_peers == ("node-1-liftbridge-svc", "node-2")
    assert [warning.partition(" is ")[0] for warning in loaded.warnings] == [f"`{name}`" for name in flags]


@pytest.mark.parametrize("text", ["nats://a:1 nats://b:2", "nats://a:1,nats://b:2", " nats://a:1 ,  nats://b:2 "])
def test_lists_are_separated_by_commas_or_spaces(text: str) -> None:
    assert load(flags={"nats.servers": text}, environ={}).nats.servers == ("nats://a:1", "nats://b:2")


@pytest.mark.parametrize("prefix", ["BASCULE_", "LIFTBRIDGE_"])
@pytest.mark.parametrize("name", ["LOGGING_LEVEL", "LOGGING.LEVEL"])
def test_variables_have_dots_or_underscores(prefix: str, name: str) -> None:
    assert load(environ={prefix + name: "debug"}).logging.level == "debug"


def test_a_misspelt_variable_with_dots_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"BASCULE_LOGGING\.LEVLE"):
        load(environ={"BASCULE_LOGGING.LEVLE": "debug"})
