"""Columns of numbers or bytes, as kernels fill them."""

class Column:
    """Shows its items through the buffer protocol, read-only. Only kernels make one."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
