"""Processes that begin as copies of one that has imported Bascule already: a broker then starts in 30 ms of CPU instead of 500.

    process = start_copy("bascule.broker.main", arguments, environ, stdout=log, stderr=log)

It is a process of its own in every way that a test can see from outside: arguments, environment, signals, exit code, open files and
limits. Only the imports are older than it is. tests/broker/cli also runs `python -m bascule.broker` itself.

    write_tool(folder / "bascule")        # for shells: an executable that has its work done by such a process

The server is one process per process of tests, without threads. A request is a JSON document with three descriptors, stdin, stdout and
stderr, on a connection of its own. The server answers with the process id and a pidfd, and, when the process ends, with its status.
When the process of the tests ends, so does the server, and everything that it has started.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import resource
import select
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PRELOADED: Final = ("bascule.broker.main", "bascule.cli.main", "bascule.client.client", "typer.rich_utils", "rich.live")
TOOL: Final = Path(__file__).with_name("forked_tool.py")
REQUEST_BYTES_MAX: Final = 1 << 20
_NUMBER: Final = struct.Struct("<q")


# ── in the process of the tests ──────────────────────────────────────────────────────────────────


class ForkedProcess:
    """Has what tests need of `subprocess.Popen`."""

    def __init__(self, pid: int, handle: int, ending: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = handle
        self._ending = ending

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # a zombie that the server has buried meanwhile
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and _is_readable(self._ending, timeout):
            data = self._ending.recv(_NUMBER.size)
            assert data, "the fork server has died"
            (self.returncode,) = _NUMBER.unpack(data)
            self._ending.close()
            os.close(self._handle)
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None:
            self._ending.close()
            os.close(self._handle)


class _ForkServer:
    """The server, as the process of the tests sees it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bascule-tests-"))  # with mode 0700: no other user can connect
        self.address = str(self._folder / "server")
        self._environ = _of_interpreter(_server_environ())
        self._life, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(64)
            handles = (theirs.fileno(), listening.fileno())
            command = [sys.executable, "-m", "tests.support.fork_server", *map(str, handles)]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=handles, env=_server_environ())

    def is_fit_for(self, environ: Mapping[str, str]) -> bool:
        """Whether an interpreter that is started in this environment would be like the one of the server."""
        return _of_interpreter(environ) == self._environ

    def start(self, request: Mapping[str, object], descriptors: Sequence[int]) -> ForkedProcess:
        data = json.dumps(request).encode()
        assert len(data) < REQUEST_BYTES_MAX
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(self.address)
        socket.send_fds(line, [data], descriptors)
        answer, handles, _, _ = socket.recv_fds(line, _NUMBER.size, 1)
        assert answer, "the fork server has died"
        return ForkedProcess(_NUMBER.unpack(answer)[0], handles[0], line)

    def stop(self) -> None:
        self._life.close()
        self._process.wait()
        shutil.rmtree(self._folder)


_running: dict[int, _ForkServer] = {}
"""The server of this process, by the process id: a copy of this process has none."""


def start_copy(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: int | None = None,
    stdout: int,
    stderr: int,
    handles: int | None = None,
) -> ForkedProcess | None:
    """A process that runs `main` of a module, or None if an interpreter in this environment would differ from the server's. `handles`
    limits open files."""
    server = _server()
    if not server.is_fit_for(environ):
        return None
    request = {
        "module": module,
        "arguments": list(arguments),
        "environ": dict(environ),
        "directory": str(Path.cwd()),
        "handles": handles,
    }
    with Path(os.devnull).open("rb") as nothing:
        return server.start(request, [nothing.fileno() if stdin is None else stdin, stdout, stderr])


def write_tool(path: Path) -> None:
    """Make an executable file that does what `bascule` does. It forwards signals."""
    parts = (sys.executable, "-I", "-S", str(TOOL), _server().address, "bascule.cli.main")
    path.write_text(f'#!/bin/sh\nexec {shlex.join(parts)} "$@"\n')
    path.chmod(0o755)


def _server() -> _ForkServer:
    server = _running.get(os.getpid())
    if server is None:
        server = _running[os.getpid()] = _ForkServer()
        atexit.register(server.stop)
    return server


def _server_environ() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1"}


def _of_interpreter(environ: Mapping[str, str]) -> dict[str, object]:
    """What an interpreter or the linker reads when it starts."""
    found: dict[str, object] = {
        name: value for name, value in environ.items() if name.startswith(("PYTHON", "LD_", "MALLOC_", "GRPC_"))
    }
    found["PYTHONPATH"] = {*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))} - {str(ROOT)}
    return found


def _is_readable(one: socket.socket, timeout: float | None) -> bool:
    waiting = select.poll()
    waiting.register(one, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else timeout * 1000))


# ── in the server ────────────────────────────────────────────────────────────────────────────────


class _Child(Exception):
    """Raised in a copy of the server: the request that it serves."""

    def __init__(self, request: dict[str, object]) -> None:
        self.request = request


class _Server:
    def __init__(self, life: socket.socket, listening: socket.socket) -> None:
        self._life = life
        self._listening = listening
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(life, selectors.EVENT_READ)
        self._waiting.register(listening, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def run(self) -> None:
        """Until the process of the tests ends."""
        while True:
            for key, _ in self._waiting.select():
                if key.fd in self._children:
                    self._bury(key.fd)
                elif key.fileobj is self._life:
                    self._kill_all()
                    return
                else:
                    self._serve(self._listening.accept()[0])

    def _serve(self, line: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 3)
        if not data:
            line.close()
            return
        pid = os.fork()
        if not pid:
            self._become(line, descriptors)
            raise _Child(json.loads(data))
        for descriptor in descriptors:
            os.close(descriptor)
        handle = os.pidfd_open(pid)
        self._children[handle] = (pid, line)
        self._waiting.register(handle, selectors.EVENT_READ)
        with suppress(BrokenPipeError):
            socket.send_fds(line, [_NUMBER.pack(pid)], [handle])

    def _become(self, line: socket.socket, descriptors: Sequence[int]) -> None:
        """Nothing of the server's is open in a copy of it."""
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
        self._waiting.close()
        for one in (self._life, self._listening, line, *(line for _, line in self._children.values())):
            one.detach()
        self._children.clear()
        os.closerange(3, max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 1)

    def _bury(self, handle: int) -> None:
        pid, line = self._children.pop(handle)
        self._waiting.unregister(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with line, suppress(BrokenPipeError):
            line.send(_NUMBER.pack(code))

    def _kill_all(self) -> None:
        for handle, (pid, _) in self._children.items():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(life: int, listening: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process of the tests too, which then ends
    for name in PRELOADED:
        importlib.import_module(name)
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        importlib.import_module("bascule.cli.main").app(["context", "list"])  # typer imports much for its first command
    gc.collect()
    gc.freeze()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a process with threads cannot be copied"
    try:
        _Server(socket.socket(fileno=life), socket.socket(fileno=listening)).run()
    except _Child as child:
        request = child.request
    else:
        return
    _run(request)


def _run(request: dict[str, object]) -> None:
    """As a new interpreter would. The end of `main` is the end of the process."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(request["directory"]))
    handles = request["handles"]
    if isinstance(handles, int):
        resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))
    module = str(request["module"])
    sys.argv[:] = [module, *request["arguments"]]  # type: ignore[misc]
    importlib.import_module(module).main()


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
