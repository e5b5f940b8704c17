"""`bascule` as people run it: as a process with pipes, as a process in a terminal, and, for what needs no process, called."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.support.broker_process import clean_environ
from tests.support.fork_server import start_copy
from tests.support.waiting import PATIENCE_SECONDS

COMMAND: Final = (sys.executable, "-m", "bascule.cli.main")
COLUMNS: Final = 120

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and how it left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.lines]

    def ok(self) -> Outcome:
        assert self.code == 0, self
        assert self.err == "", self
        return self

    def failed(self, code: int, *words: str) -> Outcome:
        """Assert that it exited with this code and printed these words and a hint, but no traceback."""
        assert self.code == code, self
        assert "Traceback" not in self.err, self
        assert self.err.startswith("error: "), self
        assert "\nhint: " in self.err, self
        for word in words:
            assert word in self.err, (word, self)
        return self


Run = Callable[..., Outcome]


def environ(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without the contexts of the user who runs the tests."""
    found = clean_environ({"XDG_CONFIG_HOME": str(home), "TERM": "xterm-256color"})
    # Width and colours of the test's terminal, not of the one in which the tests run.
    theirs = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    return {**{name: value for name, value in found.items() if name not in theirs}, **(extra or {})}


def run(
    *arguments: str,
    home: Path,
    given: bytes | str = b"",
    env: Mapping[str, str] | None = None,
    timeout: float = 180,
) -> Outcome:
    """As a process, with pipes."""
    data = given.encode() if isinstance(given, str) else given
    command, environment = [*COMMAND, *arguments], environ(home, env)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, TemporaryFile() as out, TemporaryFile() as err:
        process = start_copy(
            "bascule.cli.main", arguments, environment, stdin=reading, stdout=out.fileno(), stderr=err.fileno()
        ) or subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, env=environment)
        stdin.close()
        feeding = Thread(target=_feed, args=(writing, data), daemon=True)
        feeding.start()
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            feeding.join()
        return Outcome(code, _text(out), _text(err))


def _feed(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(pipe, "wb", buffering=0) as file:
        file.write(data)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def start(*arguments: str, home: Path) -> subprocess.Popen[bytes]:
    """As a process that goes on; pipes are unbuffered."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environ(home),
    )


def read_exactly(stream: IO[bytes] | None, size: int) -> bytes:
    """From a pipe that gives what it has."""
    assert stream is not None
    found = b""
    while len(found) < size:
        piece = stream.read(size - len(found))
        assert piece, f"it ended behind {found!r}"
        found += piece
    return found


# Becomes a command in a terminal whose keys send it signals. Not done between fork and exec: gRPC's threads, which a test has for other
# reasons, do not outlive a fork.
LAUNCHER: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """As a process in a terminal of its own, which Ctrl-C reaches."""

    def __init__(
        self, *arguments: str, home: Path, stdin: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        stdin = slave if stdin is None else stdin
        environment = environ(home, env)
        self._process = start_copy(
            "bascule.cli.main", arguments, environment, stdin=stdin, stdout=slave, stderr=slave, owns_terminal=True
        ) or subprocess.Popen(
            [sys.executable, "-S", "-c", LAUNCHER, *COMMAND, *arguments],
            stdin=stdin,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = ""

    @property
    def shown(self) -> str:
        """What is on the screen, without colours."""
        return _ESCAPE.sub("", self.raw)

    def read_until(self, text: str, timeout: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.shown:
            assert time.monotonic() < deadline, f"`{text}` did not appear:\n{self.shown}"
            assert self._read(0.2) or self._process.poll() is None or text in self.shown, self.shown

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the last writer has left
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)

    def enter(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press_ctrl_c(self) -> None:
        self.enter("\x03")

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        deadline = time.monotonic() + timeout
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still there:\n{self.shown}"
            self._read(0.1)
        while self._read(0.05):
            pass
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)
