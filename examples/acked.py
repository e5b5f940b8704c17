"""Publish through the API and wait until the message is kept."""

import argparse

import grpc  # type: ignore[import-untyped]

from examples.api import connect

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("stream")
parser.add_argument("text")
parser.add_argument("--server", default="127.0.0.1:9292")
parser.add_argument("--key", default="")
options = parser.parse_args()

api, client = connect(options.server)
request = api.PublishRequest(
    stream=options.stream, key=options.key.encode(), value=options.text.encode(), ackPolicy=api.ALL
)
try:
    ack = client.Publish(request, timeout=5).ack
except grpc.RpcError as error:
    raise SystemExit(f"{error.code().name}: {error.details()}") from None
print(f"kept at offset {ack.offset} of {ack.stream}")
