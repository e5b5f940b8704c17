"""A server that speaks S3, as a process, and a proxy before it that makes it fail: 500s, slow answers, answers that are lost."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3

START_SECONDS_MAX: Final = 120.0
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
    matches: Callable[[str, str], bool]
    """Of method and path."""
    times: int = 1
    seconds: float = 0.5


@dataclass(slots=True)
class ObjectStore:
    """The server behind the proxy."""

    address: str
    """Of the proxy."""
    port: int
    """Of the server itself."""
    faults: list[Fault] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """For deltalake, through the proxy. Retries are quick, so that tests are."""
        endpoint = {"AWS_ENDPOINT_URL": f"http://{self.address}", "AWS_ALLOW_HTTP": "true"}
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
            aws_secret_access_key="very-secret-key",  # noqa: S106
            region_name="eu-central-1",
        )

    def create_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def fail(self, kind: str, method: str, part: str, times: int = 1, seconds: float = 0.5) -> None:
        self.faults.append(Fault(kind, lambda verb, path: verb == method and part in path, times, seconds))

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for one in self.faults:
                if one.times and one.matches(method, path):
                    one.times -= 1
                    self.happened.append(f"{one.kind} {method}")
                    return one
        return None


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """A server with no bucket."""
    with (directory / "object-store.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.object_store"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert server.stdout is not None
            store = ObjectStore("", int(server.stdout.readline()))
            _wait(store.port)
            proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
            proxy.daemon_threads = True
            store.address = f"127.0.0.1:{proxy.server_address[1]}"
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            try:
                yield store
            finally:
                proxy.shutdown()
                proxy.server_close()
        finally:
            server.kill()
            server.wait()


def _wait(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        finally:
            connection.close()


def _handler(store: ObjectStore) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing: tests say what they saw."""

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            fault = store.next_fault(self.command, self.path)
            if fault is not None and fault.kind in _FAILURES:
                status, code = _FAILURES[fault.kind]
                said = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self._answer(status, [("content-type", "application/xml")], b"" if self.command == "HEAD" else said)
                return
            if fault is not None and fault.kind == "slow":
                time.sleep(fault.seconds)
            connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                found = connection.getresponse()
                content = found.read()
            finally:
                connection.close()
            if fault is not None and fault.kind == "lost":
                self.close_connection = True
                self.connection.close()
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

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    return Handler


def main() -> None:
    """Serve S3 on a free port, whose number is the first line."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
