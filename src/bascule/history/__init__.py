"""A stream with its archive in front of its log, without Spark: for `Client.subscribe` and `read_table` with `history`."""
