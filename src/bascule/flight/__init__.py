"""Streams as Arrow tables: what both ends of Arrow Flight agree on, and the end that reads. Needs pyarrow (`bascule[spark]`)."""
