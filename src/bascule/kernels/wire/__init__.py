"""Numbers, protobuf fields, UTF-8 and output buffers."""
