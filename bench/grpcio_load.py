"""The loads of bench/tools/grpc_load.c with grpcio, as Python clients use it: `python -m bench.grpcio_load publish-async --port …`."""

from __future__ import annotations

import argparse
import json
import resource
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from bascule.proto import api_pb2

grpc: Any = import_module("grpc")  # has no types of its own


def publish_async(channel: Any, options: argparse.Namespace) -> tuple[float, int, int, list[float]]:
    window = threading.Semaphore(options.window)
    value = b"x" * options.size

    def requests() -> Iterator[bytes]:
        for number in range(options.messages):
            window.acquire()
            request = api_pb2.PublishRequest(stream=options.streams, value=value, correlationId=f"{number:016x}")
            yield request.SerializeToString()

    call = channel.stream_stream("/proto.API/PublishAsync", response_deserializer=api_pb2.PublishResponse.FromString)
    began = time.monotonic()
    acked = failed = 0
    responses = call(requests())
    for response in responses:
        window.release()
        acked += 1
        failed += response.HasField("asyncError") or response.ack.ackError != 0
        if acked == options.messages:
            break
    return began, acked, failed, []


def publish(channel: Any, options: argparse.Namespace) -> tuple[float, int, int, list[float]]:
    call = channel.unary_unary("/proto.API/Publish", response_deserializer=api_pb2.PublishResponse.FromString)
    request = api_pb2.PublishRequest(stream=options.streams, value=b"x" * options.size, correlationId="0" * 16)
    latencies, failed = [], 0
    began = time.monotonic()
    for _ in range(options.messages):
        posted = time.perf_counter()
        response = call(request.SerializeToString(), timeout=60)
        latencies.append(time.perf_counter() - posted)
        failed += not response.HasField("ack")
    return began, options.messages, failed, latencies


def subscribe(channel: Any, options: argparse.Namespace) -> tuple[float, int, int, list[float]]:
    request = api_pb2.SubscribeRequest(stream=options.streams, startPosition=api_pb2.EARLIEST)
    call = channel.unary_stream("/proto.API/Subscribe")  # bytes: what is measured is the broker
    began = time.monotonic()
    messages = -1  # the first one is empty
    for _ in call(request.SerializeToString()):
        messages += 1
        if messages == options.messages:
            break
    return began, messages, 0, []


MODES = {"publish-async": publish_async, "publish": publish, "subscribe": subscribe}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.grpcio_load", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", required=True, help="one stream")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--window", type=int, default=8000)
    options = parser.parse_args()
    channel = grpc.insecure_channel(f"127.0.0.1:{options.port}", options=[("grpc.enable_http_proxy", 0)])
    grpc.channel_ready_future(channel).result(timeout=20)
    began, messages, failed, latencies = MODES[options.mode](channel, options)
    ended = time.monotonic()
    latencies.sort()
    used = resource.getrusage(resource.RUSAGE_SELF)
    outcome = {
        "began": began,
        "ended": ended,
        "messages": messages,
        "failed": failed,
        "client_cpu": used.ru_utime + used.ru_stime,
        "p50_us": latencies[len(latencies) // 2] * 1e6 if latencies else 0.0,
        "p99_us": latencies[int(0.99 * (len(latencies) - 1))] * 1e6 if latencies else 0.0,
    }
    print(json.dumps(outcome), flush=True)
    channel.close()


if __name__ == "__main__":
    main()
