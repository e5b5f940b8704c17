"""The file that `bascule pipeline init` writes: it passes every check, and shows what else could be in it."""

from __future__ import annotations

from typing import Final

SAMPLE: Final = """\
# A pipeline: a source, steps, sinks. `bascule pipeline check FILE` says whether it would run, `bascule pipeline run FILE` runs it,
# each message exactly once in every sink. docs/reference/pipelines.md has all keys.
#
# Paths begin where this file lies. ${{NAME}} is a variable of the environment, ${{NAME:-text}} has a default.

name: {name}
# servers: 127.0.0.1:9292             # without it, those of your context: `bascule context list`

source:
  stream: {stream}                     # or streams: [a, b], pattern: "orders-.*", subject: "orders.>"
  starting: earliest                  # for the first run; later ones go on where the last one stopped
  # value:                            # what values hold: they are bytes otherwise
  #   format: json                    # or avro, protobuf
  #   schema: id BIGINT, item STRING, amount DOUBLE, at TIMESTAMP
  # time: {{from: value.at, watermark: 10m}}   # event time, for windows and joins of streams

steps: []
  # - expect: {{name: has-a-key, rule: key IS NOT NULL, otherwise: dead-letter}}   # or warn, drop, fail
  # - where: value.amount > 100
  # - dedup: {{key: [value.id], within: 10m}}
  # - window: {{size: 1h, by: {{item: value.item}}, aggregates: {{amount: sum(value.amount)}}}}
  # - select: [item, amount]
  # - sql: SELECT item, sum(amount) AS amount FROM input GROUP BY item

sinks:
  - archive: lake/{stream}             # all messages as they came, as Parquet; `bascule pipeline verify FILE` proves it
  # - stream: {{stream: {stream}-checked, create: true, when: amount > 100}}
  # - table: lake/{stream}-checked
  # - console                         # rows on the screen

# dlq: {{stream: {stream}-dead}}         # what steps reject, or path: a folder

# schedule: "*/15 * * * *"             # run at these times, and not all the time

trigger: 10s                          # how often a batch is made
checkpoint: checkpoints/{name}
"""


def sample(name: str, stream: str) -> str:
    return SAMPLE.format(name=name, stream=stream)
