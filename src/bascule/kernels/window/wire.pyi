"""The codec of publish requests and responses, for kernels only: see `wire.pxd`."""
