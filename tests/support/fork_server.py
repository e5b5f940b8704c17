"""Processes that begin as copies of one that has imported Bascule already: a broker then starts in 30 ms of CPU instead of 500.

    process = start_copy("bascule.broker.main", arguments, environ, stdout=log, stderr=log)

It is a process of its own in every way that a test can see from outside: arguments, environment, signals, exit code, open files and
limits. Only the imports are older than it is. tests/broker/cli also runs `python -m bascule.broker` itself.

The server is one process per process of tests, without threads, and a second one for brokers whose machine can fail: see
broker_faults.py. A request is a JSON document with four descriptors: stdin, stdout, stderr, and a socket on which the server answers
with the process id and a pidfd, and, when the process ends, with its status.
When the last process of tests ends, so does the server, and everything that it has started.

A server that is given a listening socket also takes requests from other processes: see quick_programs.py. Such a request has three
descriptors and is answered on its own connection, whose end kills the process.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support import broker_faults

ROOT: Final = Path(__file__).resolve().parents[2]
PRELOADED: Final = (
    *("bascule.broker.main", "bascule.broker.broker", "bascule.cli.main", "bascule.client.client"),
    *("yaml", "uvloop", "encodings.utf_8_sig"),  # a broker imports them when it starts
)
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
        self._taking = threading.Lock()

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
        """Several threads may ask: the first one that finds the end takes it."""
        try:
            is_over = self.returncode is None and _is_readable(self._ending, timeout)
        except (OSError, ValueError):
            if self.returncode is None:
                raise
            return self.returncode  # another thread has closed the line meanwhile
        with self._taking:
            if is_over and self.returncode is None:
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


class ForkServer:
    """The server, as the process of the tests sees it."""

    def __init__(
        self,
        extra: Mapping[str, str],
        preloaded: Sequence[str] = PRELOADED,
        listener: socket.socket | None = None,
    ) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {**_server_environ(), **extra}
        self._environ = _of_interpreter(environ)
        handles = [] if listener is None else [listener.fileno()]
        command = [sys.executable, "-m", "tests.support.fork_server", *map(str, handles or [-1]), *preloaded]
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno(), env=environ, pass_fds=handles)

    def is_fit_for(self, environ: Mapping[str, str]) -> bool:
        """Whether an interpreter that is started in this environment would be like the one of the server."""
        return _of_interpreter(environ) == self._environ

    def start(self, request: Mapping[str, object], descriptors: Sequence[int]) -> ForkedProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            data = json.dumps(request).encode()
            assert len(data) < REQUEST_BYTES_MAX
            socket.send_fds(self._line, [data], [*descriptors, theirs.fileno()])
        answer, handles, _, _ = socket.recv_fds(ours, _NUMBER.size, 1)
        assert answer, "the fork server has died"
        return ForkedProcess(_NUMBER.unpack(answer)[0], handles[0], ours)

    def stop(self) -> None:
        self._line.close()
        self._process.wait()


_running: dict[tuple[int, bool], ForkServer] = {}
"""The servers of this process, by the process id, because a copy of this process has none, and whether their machines can fail."""


def start_copy(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: int | None = None,
    stdout: int,
    stderr: int,
    handles: int | None = None,
    owns_terminal: bool = False,
) -> ForkedProcess | None:
    """A process that runs `main` of a module, or None if an interpreter in this environment would differ from the server's. `handles`
    limits open files; with `owns_terminal` the keys of the terminal on stdout send it signals."""
    key = (os.getpid(), broker_faults.VARIABLE in environ)
    server = _running.get(key)
    if server is None:
        server = _running[key] = ForkServer({broker_faults.VARIABLE: ""} if key[1] else {})
        atexit.register(server.stop)
    if not server.is_fit_for(environ):
        assert not key[1], "only a copy of the fork server has a machine that can fail"
        return None
    request = {
        "module": module,
        "arguments": list(arguments),
        "environ": dict(environ),
        "directory": str(Path.cwd()),
        "handles": handles,
        "owns_terminal": owns_terminal,
    }
    with Path(os.devnull).open("rb") as nothing:
        return server.start(request, [nothing.fileno() if stdin is None else stdin, stdout, stderr])


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
    def __init__(self, line: socket.socket, listener: socket.socket | None) -> None:
        self._line = line
        self._listener = listener
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(line, selectors.EVENT_READ)
        if listener is not None:
            self._waiting.register(listener, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._callers: dict[int, tuple[socket.socket, int | None]] = {}
        """Connections of other processes, and the handles of what was started for them."""

    def run(self) -> None:
        """Until the other end of the line is closed."""
        while True:
            for key, _ in self._waiting.select():
                if key.fd in self._children:
                    self._bury(key.fd)
                elif key.fd in self._callers:
                    self._hear(key.fd)
                elif key.fileobj is self._listener:
                    caller, _ = self._listener.accept()
                    self._callers[caller.fileno()] = caller, None
                    self._waiting.register(caller, selectors.EVENT_READ)
                elif self._serve(self._line) is None:
                    self._kill_all()
                    return

    def _hear(self, descriptor: int) -> None:
        """A request of another process, or its end, which is the end of what it has asked for."""
        caller, handle = self._callers.pop(descriptor, (None, None))
        if caller is None:
            return  # its process has ended in the same round
        started = self._serve(caller) if handle is None else None
        if started is not None:
            self._callers[descriptor] = caller, started
            return
        self._waiting.unregister(caller)
        if handle in self._children:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            caller.close()

    def _serve(self, line: socket.socket) -> int | None:
        """The handle of the process that was asked for; None if the line has ended."""
        data, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 4)
        if not data:
            return None
        pid = os.fork()
        if not pid:
            self._become(descriptors)
            raise _Child(json.loads(data))
        ending = socket.socket(fileno=descriptors.pop()) if line is self._line else line
        for descriptor in descriptors:
            os.close(descriptor)
        handle = os.pidfd_open(pid)
        self._children[handle] = (pid, ending)
        self._waiting.register(handle, selectors.EVENT_READ)
        socket.send_fds(ending, [_NUMBER.pack(pid)], [handle])
        return handle

    def _become(self, descriptors: Sequence[int]) -> None:
        """Nothing of the server's is open in a copy of it."""
        for place, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, place)
        self._waiting.close()
        self._line.detach()
        if self._listener is not None:
            self._listener.detach()
        for open_socket, _ in [*self._callers.values(), *((ending, pid) for pid, ending in self._children.values())]:
            open_socket.detach()
        self._children.clear()
        self._callers.clear()
        os.closerange(3, max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 1)

    def _bury(self, handle: int) -> None:
        pid, ending = self._children.pop(handle)
        self._waiting.unregister(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if self._callers.pop(ending.fileno(), None) is not None:
            self._waiting.unregister(ending)
        with ending, suppress(BrokenPipeError):
            ending.send(_NUMBER.pack(code))

    def _kill_all(self) -> None:
        for handle, (pid, _) in self._children.items():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve() -> None:
    handle, *preloaded = sys.argv[1:] or ["-1", *PRELOADED]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process of the tests, which closes the line
    if broker_faults.VARIABLE in os.environ:
        broker_faults.install()
    for name in preloaded:
        module = importlib.import_module(name)
        if name == "bascule.cli.main":
            module.command()
    gc.collect()
    gc.freeze()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a process with threads cannot be copied"
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        _Server(line, None if handle == "-1" else socket.socket(fileno=int(handle))).run()
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
    if request.get("owns_terminal"):
        os.setsid()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(request["directory"]))
    handles = request["handles"]
    if isinstance(handles, int):
        resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))
    if broker_faults.VARIABLE in os.environ:
        broker_faults.attach(os.environ[broker_faults.VARIABLE])
    module = str(request["module"])
    sys.argv[:] = [module, *request["arguments"]]  # type: ignore[misc]
    if request.get("is_script"):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        importlib.import_module(module).main()


if __name__ == "__main__":
    _serve()
