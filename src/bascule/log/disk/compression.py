"""Compresses the bodies of batches with zstd, one frame per body."""

from __future__ import annotations

import threading
from typing import Any

from bascule import limits
from bascule.errors import OperatorError

_LEVEL = 3  # zstd's default; higher levels cost much CPU and save few bytes on small frames
_local = threading.local()


def compress(body: memoryview) -> bytes:
    data: bytes = _compressor().compress(body)
    return data


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Return the body. Raises ValueError unless the frame holds exactly `size` bytes."""
    if size > limits.BATCH_BYTES_MAX:
        raise ValueError(f"a body of {size} bytes is larger than a batch may be")
    zstandard = _zstandard()
    try:
        body: bytes = _decompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if len(body) != size:
        raise ValueError(f"the frame holds {len(body)} bytes, its header says {size}")
    return body


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise OperatorError(
            "zstd batches need the package `zstandard`", hint='install it with `pip install "bascule[server]"`'
        ) from None
    return zstandard


def _compressor() -> Any:
    # Contexts are expensive to create and must not be shared between threads.
    if not hasattr(_local, "compressor"):
        _local.compressor = _zstandard().ZstdCompressor(level=_LEVEL)
    return _local.compressor


def _decompressor() -> Any:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = _zstandard().ZstdDecompressor()
    return _local.decompressor
