"""Typed columns from JSON, Avro and protobuf values."""
