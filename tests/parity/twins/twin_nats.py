"""The NATS reader once more, from the description of the protocol: regular expressions, and no state but the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

Message = tuple[int, bytes, bytes, bytes | None, bytes]
"""sid, subject, reply, headers, payload"""

OPERATIONS: Final = ("PING", "PONG", "+OK", "-ERR", "INFO")
NUMBER: Final = re.compile(rb"[0-9]{1,18}")
COMMAND: Final = re.compile(rb"([^ \t]*)[ \t]*(.*?)[ \t]*", re.DOTALL)


class BrokenError(Exception):
    pass


@dataclass
class TwinReader:
    sids: set[int]
    message_bytes_max: int
    line_bytes_max: int
    messages: list[Message] = field(default_factory=list)
    events: list[tuple[str, bytes]] = field(default_factory=list)
    pongs: int = 0
    unknown: int = 0
    rest: bytes = b""
    is_broken: bool = False

    def feed(self, data: bytes) -> None:
        if self.is_broken:
            return
        self.rest += data
        try:
            while self._one():
                pass
        except BrokenError as reason:
            self.is_broken = True
            self.events.append(("BROKEN", str(reason).encode()))
            self.rest = b""

    def _one(self) -> bool:
        """Take one line, with its payload, from the rest. False when it is not there as a whole."""
        line, newline, behind = self.rest[: self.line_bytes_max].partition(b"\n")
        if not newline:
            if len(line) == self.line_bytes_max:
                raise BrokenError("a line is too long")
            return False
        behind = self.rest[len(line) + 1 :]
        matched = COMMAND.fullmatch(line.removesuffix(b"\r"))
        assert matched is not None
        operation, arguments = matched.groups()
        name = operation.decode("latin-1")
        name = name.upper() if name.isascii() else name
        if name in ("MSG", "HMSG"):
            return self._message(name, arguments, behind)
        if name not in OPERATIONS:
            raise BrokenError("a line begins with no operation of NATS")
        if name == "PING":
            self.pongs += 1
        else:
            self.events.append((name, arguments))
        self.rest = behind
        return True

    def _message(self, name: str, arguments: bytes, behind: bytes) -> bool:
        subject, sid, reply, headers_size, size = parse_arguments(name, arguments)
        if size > self.message_bytes_max:
            raise BrokenError("a message is larger than any may be")
        if len(behind) < size + 2:
            return False
        if behind[size : size + 2] != b"\r\n":
            raise BrokenError("no line break follows a payload")
        if sid in self.sids:
            headers = behind[:headers_size] if name == "HMSG" else None
            self.messages.append((sid, subject, reply, headers, behind[headers_size:size]))
        else:
            self.unknown += 1
        self.rest = behind[size + 2 :]
        return True


def parse_arguments(name: str, arguments: bytes) -> tuple[bytes, int, bytes, int, int]:
    words = re.split(rb"[ \t]+", arguments)
    number_of_sizes = 2 if name == "HMSG" else 1
    if b"\r" in arguments or len(words) - number_of_sizes not in (2, 3):
        raise BrokenError("the arguments of a message are malformed")
    subject, sid, *reply = words[:-number_of_sizes]
    numbers = [sid, *words[-number_of_sizes:]]
    if any(NUMBER.fullmatch(number) is None for number in numbers):
        raise BrokenError("the arguments of a message are malformed")
    size = int(numbers[-1])
    headers_size = int(numbers[1]) if name == "HMSG" else 0
    if headers_size > size:
        raise BrokenError("the arguments of a message are malformed")
    return subject, int(sid), b"".join(reply), headers_size, size


def publish_line(subject: bytes, payload: bytes, reply: bytes, headers: bytes | None) -> bytes:
    words = [b"PUB" if headers is None else b"HPUB", subject]
    if reply:
        words.append(reply)
    if headers is not None:
        words.append(str(len(headers)).encode())
    words.append(str(len(payload) + len(headers or b"")).encode())
    return b" ".join(words) + b"\r\n" + (headers or b"") + payload + b"\r\n"


def is_subject(subject: bytes) -> bool:
    return 1 <= len(subject) <= 1900 and re.search(rb"[\x00-\x20\x7f]", subject) is None
