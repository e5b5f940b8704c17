"""Numbers, checksums, protobuf fields, UTF-8, input and output buffers."""
