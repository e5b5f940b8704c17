"""Publish to a subject with an ordinary NATS client. A stream that is attached to the subject keeps the message."""

import argparse
import asyncio

import nats

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("subject")
parser.add_argument("text")
parser.add_argument("--nats", default="nats://127.0.0.1:4222")
options = parser.parse_args()


async def main() -> None:
    client = await nats.connect(options.nats)
    await client.publish(options.subject, options.text.encode())
    await client.drain()


asyncio.run(main())
