"""A server that speaks S3, as a process, and a proxy before it that makes it fail: 500s, slow answers, answers that are lost."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3

CONTROL: Final = "/__faults"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "very-secret-key", "AWS_REGION": "eu-central-1"}
_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
_FAILURES: Final = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "InvalidAccessKeyId"),
    "301": (301, "PermanentRedirect"),
}


@dataclass(slots=True)
class Fault:
    """What happens to requests that match, for a number of times."""

    kind: str
    """`500`, `503`, `403`, `301`: that answer; `slow`: a pause before it is passed on; `lost`: it is done, and the answer is lost."""
    method: str
    part: str
    """Of the path."""
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The server behind the proxy. Both are another process: deltalake holds Python's lock while it waits for an answer."""

    port: int
    """Of the server itself."""
    proxy: int

    @property
    def options(self) -> dict[str, str]:
        """For deltalake, through the proxy. Retries are quick, so that tests are."""
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy}", "AWS_ALLOW_HTTP": "true"}
        return {**KEYS, **endpoint, "max_retries": "5", "retry_timeout": "20s", "backoff_config.init_backoff": "20ms"}

    @property
    def arguments(self) -> list[str]:
        """The same for a command."""
        return [part for name, value in self.options.items() for part in ("--storage-option", f"{name}={value}")]

    def client(self) -> Any:
        """boto3's, without the proxy."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="tester",
            aws_secret_access_key="very-secret-key",
            region_name="eu-central-1",
        )

    def create_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def fail(self, kind: str, method: str, part: str, times: int = 1, seconds: float = 0.5) -> None:
        _call(self.proxy, "POST", CONTROL, asdict(Fault(kind, method, part, times, seconds)))

    def clear(self) -> None:
        _call(self.proxy, "DELETE", CONTROL)

    @property
    def happened(self) -> list[str]:
        """The faults since `clear`: kind and method."""
        found: list[str] = _call(self.proxy, "GET", CONTROL)
        return found


def _call(port: int, method: str, path: str, document: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if document is None else json.dumps(document))
        return json.loads(connection.getresponse().read() or "null")
    finally:
        connection.close()


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """A server with no bucket."""
    with (directory / "object-store.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.object_store"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert server.stdout is not None
            yield ObjectStore(*map(int, server.stdout.readline().split()))
        finally:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


# ── the process ──────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Faults:
    planned: list[Fault] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for one in self.planned:
                if one.times and one.method == method and one.part in path:
                    one.times -= 1
                    self.happened.append(f"{one.kind} {method}")
                    return one
        return None


def _handler(port: int, faults: _Faults) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing: tests say what they saw."""

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path == CONTROL:
                self._control(body)
            else:
                self._pass(body, faults.next(self.command, urllib.parse.unquote(self.path)))

        def _control(self, body: bytes) -> None:
            said: Any = None
            if self.command == "POST":
                faults.planned.append(Fault(**json.loads(body)))
            elif self.command == "DELETE":
                faults.planned.clear()
                faults.happened.clear()
            else:
                said = faults.happened
            self._answer(200, [], json.dumps(said).encode())

        def _pass(self, body: bytes, fault: Fault | None) -> None:
            if fault is not None and fault.kind in _FAILURES:
                status, code = _FAILURES[fault.kind]
                said = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self._answer(status, [("content-type", "application/xml")], b"" if self.command == "HEAD" else said)
                return
            if fault is not None and fault.kind == "slow":
                time.sleep(fault.seconds)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                found = connection.getresponse()
                content = found.read()
            finally:
                connection.close()
            if fault is not None and fault.kind == "lost":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(found.status, found.getheaders(), content)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            has_length = False
            for name, value in headers:
                if name.lower() in _HOP:
                    continue
                has_length |= name.lower() == "content-length"
                self.send_header(name, value)
            if not has_length:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _take  # noqa: N815

    return Handler


def main() -> None:
    """Serve S3 on two free ports, the server's and the proxy's, which are the first line."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(server.port, _Faults()))
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    print(server.port, proxy.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
