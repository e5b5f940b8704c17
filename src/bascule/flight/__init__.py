"""Streams as Arrow tables: the parts of Arrow Flight that server and client share. Needs pyarrow (`bascule[spark]`)."""
