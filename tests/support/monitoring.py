"""A broker's HTTP port, as monitoring systems and probes use it."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass

from tests.support.broker_process import BrokerProcess
from tests.support.prometheus_text import Samples, parse
from tests.support.waiting import PATIENCE_SECONDS

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def get(address: str, path: str, *, tls: ssl.SSLContext | None = None, method: str = "GET") -> Answer:
    host, _, port = address.rpartition(":")
    if tls is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE_SECONDS, context=tls)
    try:
        connection.request(method, path)
        found = connection.getresponse()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
    finally:
        connection.close()


def scrape(broker: BrokerProcess) -> Samples:
    """The metrics of now, strictly read."""
    answer = get(broker.http_address, "/metrics")
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == TEXT_FORMAT
    return parse(answer.body)
