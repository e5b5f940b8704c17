"""How commands talk to a host: a Unix socket that only its user can open, one line of JSON as a request and one as an answer.

→ {"do": "status"}                              ← {"pipelines": [{"name": "orders", "state": "running", …}]}
→ {"do": "start", "file": "/p/orders.yaml"}     ← {"pipeline": {…}}
→ {"do": "once", "file": "/p/orders.yaml"}      ← {"pipeline": {…}}, when it has ended
→ {"do": "stop", "name": "orders"}              ← {"pipeline": {…}}, when it has ended
                                                ← {"error": "[STATE] …\\nhint: …"}
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any, Final

from bascule.errors import BasculeError, CallerError, StateError, Unavailable
from bascule.pipeline.hosting.host import HostedState, PipelineHost
from bascule.spark.errors.failures import from_spark
from bascule.spark.options.failures import with_code

REQUEST_BYTES_MAX: Final = 64 << 10
PATH_BYTES_MAX: Final = 100
"""A Unix socket's path has room for 107."""


class HostSocket:
    """The socket of a host, which is served from `open` to `close`."""

    def __init__(self, host: PipelineHost, path: Path) -> None:
        self._path = path
        self._host = host
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def open(self) -> None:
        """Raises StateError if another host serves the socket."""
        _must_fit(self._path)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.exists():
            if _answers(self._path):
                raise StateError(f"a host is running at {self._path}", hint="stop it first, or give another `--socket`")
            self._path.unlink()
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(REQUEST_BYTES_MAX)
                self.wfile.write(json.dumps(answer(line)).encode() + b"\n")

        mask = os.umask(0o177)
        try:
            server = socketserver.ThreadingUnixStreamServer(str(self._path), Handler)
        finally:
            os.umask(mask)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="pipeline host", daemon=True).start()
        self._server = server

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self._path.unlink(missing_ok=True)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            return {"error": _text(CallerError(f"the request cannot be read: {error}"))}
        try:
            return self._done(request)
        except BasculeError as error:
            return {"error": _text(error)}
        except Exception as error:  # an answer is owed in any case
            return {"error": f"{type(error).__name__}: {error}"}

    def _done(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"do": "status"}:
                return {"pipelines": self._host.status()}
            case {"do": "start", "file": str(file)}:
                return {"pipeline": self._host.start(Path(file)).document()}
            case {"do": "stop", "name": str(name)}:
                return {"pipeline": self._host.stop(name).document()}
            case {"do": "once", "file": str(file)}:
                hosted = self._host.start(Path(file), once=True)
                hosted.ended.wait()
                if hosted.state is HostedState.FAILED and hosted.failure is not None:
                    raise hosted.failure
                return {"pipeline": hosted.document()}
        raise CallerError(f"a host has no request {request}")


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a host. Raises its error, or Unavailable if no host serves the socket."""
    _must_fit(path)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
    except OSError as error:
        raise _no_host(path) from error
    if not line:
        raise _no_host(path)
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise from_spark(RuntimeError(answer["error"]))
    return answer


def _no_host(path: Path) -> Unavailable:
    return Unavailable(f"no host of pipelines answers at {path}", hint="start one with `bascule pipeline host`")


def _answers(path: Path) -> bool:
    try:
        ask(path, {"do": "status"})
    except BasculeError:
        return False
    return True


def _must_fit(path: Path) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise CallerError(f"the path of the socket {path} is too long", hint=f"it has at most {PATH_BYTES_MAX} bytes")


def _text(error: BasculeError) -> str:
    return str(with_code(error))
