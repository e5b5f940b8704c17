"""What a configuration file may look like, and that no file brings more than a message."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bascule import limits
from bascule.config import KEYS, Compression, ServerConfig, Sync, load, load_with_sources
from bascule.config.sections.cluster import PublishAckPolicy
from bascule.config.sections.node import Level
from bascule.config.sections.security import PolicySource
from bascule.config.values.address import Address
from bascule.config.values.duration import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from bascule.config.values.key import key_of, section_of
from bascule.errors import InvalidConfig

NESTED = """
listen: 0.0.0.0:5050
host: 127.0.0.1
port: 5050
connections: {max: 500, per.address.max: 50}
data: {dir: /foo}
metadata: {cache.max.age: 1m}
logging:
  level: debug
  recovery: true
  raft: yes
  nats: "true"
batch.max: {messages: "10", time: 1s}
tls:
  key: /tls.key
  cert: /tls.crt
  client:
    auth: {enabled: true, optional: true, ca: /ca.crt}
    crl: /clients.crl
    authz: {enabled: true, model: /model.conf, policy: /policy.csv}
security:
  insecure: true
  audit.file: /audit.jsonl
  audit.stream: {enabled: true, replication.factor: 2, retention.max.age: 24h}
  policies: {source: file}
  tokens: {file: /tokens, plaintext: true}
  jwt:
    keys: https://id.example/keys
    ca: /id.crt
    issuer: https://id.example
    audience: cluster
    leeway: 5s
    refresh: 1m
    user: {claim: email, prefix: "oidc:"}
    roles.claim: groups
flight: {enabled: false, listen: "0.0.0.0:5052", local: false}
encryption.key: {file: /keys, command: "vault get keys"}
http: {enabled: false, listen: "0.0.0.0:5051"}
cluster: {secret: "0123456789abcdef,fedcba9876543210"}
nats:
  servers: [nats://localhost:4222, "nats://b:4222"]
  user: user
  password: pass
  tls: {cert: /n.crt, key: /n.key, ca: /n.ca}
  embedded: true
  embedded.config: /nats.conf
  embedded.host: 0.0.0.0
  embedded.port: 0
streams:
  partitions.max: 12
  retention.max: {bytes: 1024, messages: 100, age: 1h}
  cleaner.interval: 1m
  segment.max: {bytes: 64, age: 1m}
  compact: {enabled: true, max.goroutines: 2, min.lag: 1s, tombstone.retention: 2h}
  auto.pause: {time: 2m, disable.if.subscribers: true}
  concurrency.control: true
  encryption: true
  compression: ZSTD
  sync: always
  sync.interval: 300ms
clustering:
  server.id: foo
  namespace: bar
  raft:
    snapshot: {retain: 10, threshold: 100}
    cache.size: 5
    bootstrap: {seed: true, peers: [a, b]}
    max.quorum.size: 7
  replica:
    max: {lag.time: 1m, leader.timeout: 30s, idle.wait: 2s}
    fetch.timeout: 5s
  min.insync.replicas: 2
  partitions.max: 20
  replication.max.bytes: 65536
activity.stream: {enabled: true, publish: {timeout: 1m, ack.policy: leader}}
cursors.stream: {partitions: 2, replication.factor: 3, auto.pause.time: 5m}
groups: {consumer.timeout: 1m, coordinator.timeout: 2m}
telemetry: {enabled: true, interval.seconds: 60}
shutdown.drain.timeout: 7s
"""

EXPECTED: dict[str, Any] = {
    "listen": Address("0.0.0.0", 5050),
    "host": "127.0.0.1",
    "port": 5050,
    "connections.max": 500,
    "connections.per.address.max": 50,
    "data.dir": Path("/foo"),
    "metadata.cache.max.age": MINUTE_NS,
    "logging.level": Level.DEBUG,
    "logging.recovery": True,
    "logging.raft": True,
    "logging.nats": True,
    "batch.max.messages": 10,
    "batch.max.time": SECOND_NS,
    "tls.key": Path("/tls.key"),
    "tls.cert": Path("/tls.crt"),
    "tls.client.auth.enabled": True,
    "tls.client.auth.optional": True,
    "tls.client.auth.ca": Path("/ca.crt"),
    "tls.client.crl": Path("/clients.crl"),
    "tls.client.authz.enabled": True,
    "tls.client.authz.model": Path("/model.conf"),
    "tls.client.authz.policy": Path("/policy.csv"),
    "security.insecure": True,
    "security.audit.file": Path("/audit.jsonl"),
    "security.audit.stream.enabled": True,
    "security.audit.stream.replication.factor": 2,
    "security.audit.stream.retention.max.age": 24 * HOUR_NS,
    "security.policies.source": PolicySource.FILE,
    "security.policies.admins": (),
    "security.tokens.file": Path("/tokens"),
    "security.tokens.plaintext": True,
    "security.jwt.keys": "https://id.example/keys",
    "security.jwt.ca": Path("/id.crt"),
    "security.jwt.issuer": "https://id.example",
    "security.jwt.audience": "cluster",
    "security.jwt.leeway": 5 * SECOND_NS,
    "security.jwt.refresh": MINUTE_NS,
    "security.jwt.user.claim": "email",
    "security.jwt.user.prefix": "oidc:",
    "security.jwt.roles.claim": "groups",
    "flight.enabled": False,
    "flight.listen": Address("0.0.0.0", 5052),
    "flight.local": False,
    "encryption.key.file": Path("/keys"),
    "encryption.key.command": "vault get keys",
    "http.enabled": False,
    "http.listen": Address("0.0.0.0", 5051),
    "nats.servers": ("nats://localhost:4222", "nats://b:4222"),
    "nats.user": "user",
    "nats.password": "pass",
    "nats.token": None,  # the other ways to log in, of which there may be one only
    "nats.nkey.seed": None,
    "nats.creds": None,
    "nats.tls.cert": Path("/n.crt"),
    "nats.tls.key": Path("/n.key"),
    "nats.tls.ca": Path("/n.ca"),
    "nats.embedded": True,
    "nats.embedded.config": Path("/nats.conf"),
    "nats.embedded.host": "0.0.0.0",
    "nats.embedded.port": 0,
    "streams.partitions.max": 12,
    "streams.retention.max.bytes": 1024,
    "streams.retention.max.messages": 100,
    "streams.retention.max.age": HOUR_NS,
    "streams.cleaner.interval": MINUTE_NS,
    "streams.segment.max.bytes": 64,
    "streams.segment.max.age": MINUTE_NS,
    "streams.compact.enabled": True,
    "streams.compact.max.goroutines": 2,
    "streams.compact.min.lag": SECOND_NS,
    "streams.compact.tombstone.retention": 2 * HOUR_NS,
    "streams.auto.pause.time": 2 * MINUTE_NS,
    "streams.auto.pause.disable.if.subscribers": True,
    "streams.concurrency.control": True,
    "streams.encryption": True,
    "streams.compression": Compression.ZSTD,
    "streams.sync": Sync.ALWAYS,
    "streams.sync.interval": 300 * MILLISECOND_NS,
    "clustering.server.id": "foo",
    "cluster.secret": "0123456789abcdef,fedcba9876543210",
    "cluster.secret.file": None,  # instead of the former
    "clustering.namespace": "bar",
    "clustering.raft.snapshot.retain": 10,
    "clustering.raft.snapshot.threshold": 100,
    "clustering.raft.cache.size": 5,
    "clustering.raft.bootstrap.seed": True,
    "clustering.raft.bootstrap.peers": ("a", "b"),
    "clustering.raft.max.quorum.size": 7,
    "clustering.replica.max.lag.time": MINUTE_NS,
    "clustering.replica.max.leader.timeout": 30 * SECOND_NS,
    "clustering.replica.max.idle.wait": 2 * SECOND_NS,
    "clustering.replica.fetch.timeout": 5 * SECOND_NS,
    "clustering.min.insync.replicas": 2,
    "clustering.partitions.max": 20,
    "clustering.replication.max.bytes": 65536,
    "activity.stream.enabled": True,
    "activity.stream.publish.timeout": MINUTE_NS,
    "activity.stream.publish.ack.policy": PublishAckPolicy.LEADER,
    "cursors.stream.partitions": 2,
    "cursors.stream.replication.factor": 3,
    "cursors.stream.auto.pause.time": 5 * MINUTE_NS,
    "groups.consumer.timeout": MINUTE_NS,
    "groups.coordinator.timeout": 2 * MINUTE_NS,
    "telemetry.enabled": True,
    "telemetry.interval.seconds": 60,
    "shutdown.drain.timeout": 7_000_000_000,
}


def load_text(directory: Path, text: str) -> ServerConfig:
    path = directory / "bascule.yaml"
    path.write_text(text, "utf-8")
    return load(path, environ={})


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load_text(directory, text)
    assert "bascule.yaml" in str(refused.value)
    return str(refused.value)


def values_of(section: Any) -> dict[str, Any]:
    """Every key's value as the dataclasses hold it."""
    found: dict[str, Any] = {}
    for item in fields(section):
        key = key_of(item)
        if key is not None:
            found[key.name] = getattr(section, item.name)
        elif section_of(item) is not None:
            found |= values_of(getattr(section, item.name))
    return found


# ── what is accepted ─────────────────────────────────────────────────────────────────────────────


def test_a_full_nested_file_gives_exactly_its_values(tmp_path: Path) -> None:
    assert values_of(load_text(tmp_path, NESTED)) == EXPECTED
    assert set(EXPECTED) == set(KEYS)


def test_a_full_dotted_file_gives_exactly_its_values(tmp_path: Path) -> None:
    dotted = "\n".join(
        f"{name}: '{KEYS[name].kind.show(value)}'" for name, value in EXPECTED.items() if value is not None
    )
    assert values_of(load_text(tmp_path, dotted)) == EXPECTED


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    values = values_of(load_text(tmp_path, "streams: {retention.max: {age: 24h}}"))
    defaults = {name: key.default for name, key in KEYS.items()}
    assert values == defaults | {"streams.retention.max.age": 24 * HOUR_NS}


def test_a_field_is_named_like_its_key() -> None:
    def walk(section: type[Any]) -> None:
        for item in fields(section):
            key, inner = key_of(item), section_of(item)
            if key is not None:
                assert key.name.replace(".", "_").endswith(item.name.removesuffix("_ns"))
                assert item.name.endswith("_ns") == (key.kind.name == "duration")
            elif inner is not None:
                walk(inner)

    walk(ServerConfig)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            "data: {dir: /x}\ncursors: {stream.auto.pause.time: 0, stream.partitions: 1}",
            {"data.dir": "/x", "cursors.stream.auto.pause.time": 0, "cursors.stream.partitions": 1},
        ),
        (
            "streams: {retention.max: {age: 1h}, compact.enabled: true}\nnats.servers: [nats://a:1]",
            {"streams.retention.max.age": "1h", "streams.compact.enabled": True, "nats.servers": "nats://a:1"},
        ),
        ("STREAMS: {Retention.Max: {AGE: 1h}}", {"streams.retention.max.age": "1h"}),
        ("", {}),
        ("# nothing but a comment", {}),
        ("---\n...", {}),
        ("tls:\nstreams:\n  retention.max:\n", {}),
        ("\ufeffport: 1", {"port": 1}),
        ("port: &p 7\ntelemetry.interval.seconds: *p", {"port": 7, "telemetry.interval.seconds": 7}),
    ],
)
def test_files_as_people_write_them_load(tmp_path: Path, text: str, meaning: dict[str, Any]) -> None:
    assert load_text(tmp_path, text) == load_text(tmp_path, json.dumps(meaning))


def test_a_list_of_servers_may_be_one_text(tmp_path: Path) -> None:
    assert load_text(tmp_path, "nats.servers: a:1, b:2").nats.servers == ("nats://a:1", "nats://b:2")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        load(tmp_path / "none.yaml", environ={})


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="Is a directory"):
        load(tmp_path, environ={})


@pytest.mark.parametrize(
    ("text", "unknown", "suggestion"),
    [
        ("strems.sync: ack", "strems.sync", "streams.sync"),
        ("streams: {retention.max: {agee: 1h}}", "streams.retention.max.agee", "streams.retention.max.age"),
        ("clusterin: {namespace: x}", "clusterin", "clustering"),
        ("portt: 1", "portt", "port"),
        ("zzz: 1", "zzz", "config reference"),
        ("streams: 5", "streams", ""),
        ("'': 1", "", ""),
    ],
)
def test_an_unknown_key_names_file_line_key_and_suggestion(
    tmp_path: Path, text: str, unknown: str, suggestion: str
) -> None:
    message = refusal(tmp_path, "\n\n" + text)
    assert "bascule.yaml:3" in message
    assert f"Unknown key `{unknown}`" in message
    assert suggestion in message


@pytest.mark.parametrize(
    "text",
    [
        "port: 1\nport: 2",
        "streams: {sync: ack}\nstreams.sync: ack",
        "streams: {retention.max: {age: 1h}}\nstreams.retention: {max.age: 2h}",
        "Port: 1\nport: 1",
    ],
)
def test_a_key_given_twice_is_refused_with_both_places(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, text)
    assert "set twice" in message
    assert "bascule.yaml:1" in message
    assert "bascule.yaml:2" in message


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("listen: nowhere", "`listen` is `nowhere`"),
        ("port:", "has no value"),
        ("port: ''", "`port` is ``"),
        ("nats.user: ''", "not empty"),
        ("cluster.secret: short", "1 to 2 different secrets of at least 16 characters"),
        ("cluster.secret: 0123456789abcdef,0123456789abcdef", "different secrets"),
        ("cluster.secret: 0123456789abcdef\ncluster.secret.file: /secret", "set twice"),
        ("security.audit.stream.enabled: true", "needs a cluster secret"),
        (
            "security.audit.stream.enabled: true\ncluster.secret: 0123456789abcdef\nclustering.replication.max.bytes: 4KiB",
            "Audit records can be larger",
        ),
        ("port: [1]", "takes one value, not a list"),
        ("port: {a: 1}", "takes a value, not more keys"),
        ("nats.servers: [[a]]", "something else than texts"),
        ("nats.servers: [{a: b}]", "something else than texts"),
        ("nats.servers: []", "at least one URL"),
        ("? [a, b]\n: 1", "a key is a word"),
        ("<<: {port: 1}", "a key is a word"),
        ("port: !!binary aGk=", "has no meaning here"),
        ("nats.user: !!python/object/apply:os.system [x]", "takes one value"),
        ("nats.user: !secret x", "has no meaning here"),
        ("- a\n- b", "holds a list instead of keys"),
        ("just words", "holds a text instead of keys"),
        ("a: b: c", "is not YAML"),
        ("a: 'unclosed", "is not YAML"),
        ("port: *nowhere", "is not YAML"),
        ("\tport: 1", "is not YAML"),
        ("port: 1\n---\nport: 2", "is not YAML"),
        ("port: \x01", "is not YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_a_reason(tmp_path: Path, text: str, fragment: str) -> None:
    assert fragment in refusal(tmp_path, text)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bascule.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(InvalidConfig, match="not a text file"):
        load(path, environ={})


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    assert "larger than" in refusal(tmp_path, "#" * (limits.CONFIG_FILE_BYTES_MAX + 1))


@pytest.mark.parametrize("opening", ["streams: {", "[", "{streams: ", "- "])
def test_a_deeply_nested_file_is_refused(tmp_path: Path, opening: str) -> None:
    refusal(tmp_path, opening * 20_000)


def test_a_recursive_alias_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path, "streams: &s\n  retention: *s")


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    refusal(tmp_path, "\n".join(levels))
    mapping = "nats.servers: &a [" + "x:1, " * 3000 + "]\nclustering.raft.bootstrap.peers: *a\n"
    assert len(load_with_names(tmp_path, mapping)) == 2
    refusal(tmp_path, "nats.servers: [" + "x:1, " * (limits.CONFIG_NODES_MAX + 1) + "]")


def load_with_names(directory: Path, text: str) -> list[str]:
    path = directory / "bascule.yaml"
    path.write_text(text.replace("x:1", "x"), "utf-8")
    return [setting.key.name for setting in load_with_sources(path, environ={}).settings if not setting.is_default]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bascule.yaml"
    path.write_bytes(data)
    try:
        load(path, environ={})
    except InvalidConfig as refused:
        assert "bascule.yaml" in refused.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.sampled_from("port: {}[]&*!|>'\"\n\t -,?#%1aé\x85"), max_size=60))
def test_any_yaml_like_text_loads_or_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bascule.yaml"
    path.write_text(text, "utf-8")
    try:
        load(path, environ={})
    except InvalidConfig as refused:
        assert "bascule.yaml" in refused.message
