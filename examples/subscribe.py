"""Read a stream from its beginning and follow it."""

import argparse

import grpc  # type: ignore[import-untyped]

from examples.api import connect

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("stream")
parser.add_argument("--server", default="127.0.0.1:9292")
parser.add_argument("--partition", type=int, default=0)
parser.add_argument("--offset", type=int, default=0, help="where to begin")
parser.add_argument("--count", type=int, default=0, help="stop after so many messages; 0 follows for ever")
options = parser.parse_args()

api, client = connect(options.server)
request = api.SubscribeRequest(
    stream=options.stream, partition=options.partition, startPosition=api.OFFSET, startOffset=options.offset
)
try:
    messages = client.Subscribe(request)
    next(messages)  # an empty message says that the subscription stands
    for number, message in enumerate(messages, start=1):
        print(message.offset, message.subject, message.value.decode(errors="replace"), flush=True)
        if number == options.count:
            break
except grpc.RpcError as error:
    raise SystemExit(f"{error.code().name}: {error.details()}") from None
except KeyboardInterrupt:
    pass
