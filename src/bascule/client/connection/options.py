"""Options of calls, checked before anything is sent. Each error names the option, its value and the valid ones."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final, Literal

from bascule import limits
from bascule.client.connection.wire import Fields
from bascule.errors import InvalidConfig, InvalidOption
from bascule.names import TOMBSTONE_HEADER, stream_name_fault, subject_fault
from bascule.net.tls import client_tls

PORT_DEFAULT: Final = 9292
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

AckPolicy = Literal["leader", "all", "none"]
ACK_NONE: Final = 2
ACK_POLICIES: Final[Mapping[str, int]] = {"leader": 0, "all": 1, "none": ACK_NONE}
Duration = timedelta | float
"""A timedelta, or seconds."""
Bytes = bytes | bytearray | memoryview | str
"""What may be published; text is sent as UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """PEM files: `ca` has the authorities to trust instead of the system's, `cert` and `key` the client's certificate."""

    ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None


def wrong(option: str, value: object, right: str) -> InvalidOption:
    return InvalidOption(f"`{option}` is {value!r}", hint=f"it must be {right}")


# ── addresses ────────────────────────────────────────────────────────────────────────────────────


def addresses(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """One address or several: `host`, `host:port`, `[v6]:port`, or many of them with commas in between."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [_address(text.strip() if isinstance(text, str) else text) for text in texts]
    if not found:
        raise wrong("servers", servers, "at least one address such as `127.0.0.1:9292`")
    return list(dict.fromkeys(found))


def _address(text: object) -> tuple[str, int]:
    right = "an address such as `127.0.0.1:9292`, `broker.example` or `[::1]:9292`"
    if not isinstance(text, str) or not text or "://" in text or any(char.isspace() for char in text):
        raise wrong("servers", text, right)
    host, port = text, str(PORT_DEFAULT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise wrong("servers", text, right)
        port = rest[1:] if rest else port
        try:
            IPv6Address(host)
        except ValueError:
            raise wrong("servers", text, right) from None
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or ("[" not in text and ":" in host) or not port.isascii() or not port.isdigit():
        raise wrong("servers", text, right)
    if not 0 < int(port) <= 65_535:
        raise wrong("servers", text, "an address with a port from 1 to 65535")
    return host, int(port)


# ── single values ────────────────────────────────────────────────────────────────────────────────


def stream_name(value: object, option: str = "stream") -> str:
    fault = "it is empty" if value == "" else stream_name_fault(value) if isinstance(value, str) else "it is no text"
    if fault is not None or not isinstance(value, str):
        raise InvalidOption(
            f"`{option}` is {value!r}: {fault}", hint="a stream's name has no spaces and none of / \\ * > \""
        )
    return value


def subject_name(value: object, option: str = "subject") -> str:
    fault = subject_fault(value) if isinstance(value, str) else "it is no text"
    if fault is not None or not isinstance(value, str):
        raise InvalidOption(
            f"`{option}` is {value!r}: {fault}", hint="write it as `orders.eu`; `*` and `>` are wildcards"
        )
    return value


def integer(option: str, value: object, least: int, most: int = INT64_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limit = "" if most in (INT32_MAX, INT64_MAX) else f" to {most}"
        raise wrong(option, value, f"a whole number from {least}{limit}" + ("" if limit else " on"))
    return value


def flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(option, value, "True or False")
    return value


def seconds(option: str, value: object, *, zero: bool = False) -> float:
    """A duration in seconds, above zero unless zero means something."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not 0 <= number <= 1e9
        or (not number and not zero)
    ):
        raise wrong(option, value, f"a timedelta or seconds, {'0 or more' if zero else 'more than 0'}")
    return float(number)


def ack_policy(value: object) -> int:
    found = ACK_POLICIES.get(value) if isinstance(value, str) else None
    if found is None:
        raise wrong("ack", value, "'leader', 'all' or 'none'")
    return found


def resends(value: object, policy: int) -> bool:
    """Whether a message that may be stored is sent again; by default with ack='all'."""
    if value is None:
        return policy == ACK_POLICIES["all"]
    if flag("resend", value) and policy == ACK_POLICIES["none"]:
        raise wrong("resend", value, "False with ack='none': without acks it is unknown which messages to send again")
    return bool(value)


def payload(option: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise wrong(option, type(value).__name__, "bytes or text")


def headers(value: Mapping[str, Bytes] | None) -> dict[str, bytes] | None:
    if not value:
        return None
    if not isinstance(value, Mapping) or any(not isinstance(name, str) for name in value):
        raise wrong("headers", value, "a mapping from names to bytes or text")
    if len(value) > limits.RECORD_HEADERS_MAX:
        raise InvalidOption(
            f"`headers` has {len(value)} entries", hint=f"at most {limits.RECORD_HEADERS_MAX} are stored"
        )
    return {name: payload(f"headers[{name!r}]", one) for name, one in value.items()}


NO_VALUE: Final = {TOMBSTONE_HEADER: b"1"}
"""The header of a message without a value."""


def value_and_headers(
    value: Bytes | None, given: Mapping[str, Bytes] | None, option: str = "value"
) -> tuple[bytes, dict[str, bytes] | None]:
    """Value and headers of a message. One without a value, a tombstone, has the header that says so."""
    found = headers(given)
    if value is None:
        return b"", {**(found or {}), **NO_VALUE}
    return payload(option, value), found


def partition_numbers(option: str, value: Iterable[int] | int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return sorted({integer(option, number, 0, INT32_MAX) for number in numbers})


def timestamp_ns(option: str, value: datetime) -> int:
    """Unix nanoseconds of a datetime. One without a time zone is ambiguous, and refused."""
    if value.tzinfo is None:
        raise wrong(option, value, "a datetime with a time zone, such as `datetime.now(UTC)`")
    return (value - _UNIX_EPOCH) // timedelta(microseconds=1) * 1000


_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# ── streams ──────────────────────────────────────────────────────────────────────────────────────

_COUNTS: Final = {
    "retention_max_bytes": "retentionMaxBytes",
    "retention_max_messages": "retentionMaxMessages",
    "segment_max_bytes": "segmentMaxBytes",
}
DURATIONS: Final = {
    "retention_max_age": "retentionMaxAge",
    "cleaner_interval": "cleanerInterval",
    "segment_max_age": "segmentMaxAge",
    "compact_min_lag": "compactMinLag",
    "tombstone_retention": "compactTombstoneRetention",
    "auto_pause_time": "autoPauseTime",
    "sync_interval": "syncInterval",
}
_FLAGS: Final = {
    "compact": "compactEnabled",
    "auto_pause_disable_if_subscribers": "autoPauseDisableIfSubscribers",
    "optimistic_concurrency_control": "optimisticConcurrencyControl",
    "encryption": "encryption",
}
WORDS: Final = {"sync": ("ack", "interval", "always"), "compression": ("none", "zstd")}
"""What settings that are words may be; they have the same names in the request."""

WIRE_NAMES: Final = {
    **_COUNTS,
    **DURATIONS,
    **_FLAGS,
    **{name: name for name in WORDS},
    "min_insync_replicas": "minIsr",
}
"""Settings that a stream has, by the names of the arguments of `create_stream` → in requests and answers."""


def stream_settings(given: Mapping[str, Any]) -> Fields:
    """Settings of a new stream as fields of the request; None leaves a setting to the server."""
    fields: Fields = {}
    for option, value in given.items():
        if value is None:
            continue
        if option in _COUNTS:
            fields[_COUNTS[option]] = {"value": integer(option, value, 0)}
        elif option in DURATIONS:
            fields[DURATIONS[option]] = {"value": round(seconds(option, value, zero=True) * 1000)}
        elif option in _FLAGS:
            fields[_FLAGS[option]] = {"value": flag(option, value)}
        elif option in WORDS:
            fields[option] = {"value": _word(option, value)}
        elif option == "compact_max_goroutines":
            fields["compactMaxGoroutines"] = {"value": integer(option, value, 0, INT32_MAX)}
        else:
            assert option == "min_insync_replicas", option
            fields["minIsr"] = {"value": integer(option, value, 1, INT32_MAX)}
    return fields


def _word(option: str, value: object) -> object:
    if value not in WORDS[option]:
        raise wrong(option, value, "one of " + ", ".join(f"`{word}`" for word in WORDS[option]))
    return value


def tls_context(tls: bool | ssl.SSLContext | TlsOptions | None) -> ssl.SSLContext | None:
    """The TLS context: None without TLS, the system's authorities for True, else as the options say."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is True:
        tls = TlsOptions()
    if not isinstance(tls, TlsOptions):
        raise wrong("tls", tls, "True, TlsOptions(ca=…, cert=…, key=…) or an ssl.SSLContext")
    try:
        return client_tls(tls.ca, tls.cert, tls.key)
    except InvalidConfig as error:
        raise InvalidOption(f"`tls` cannot be used: {error.message}", hint=error.hint) from None
