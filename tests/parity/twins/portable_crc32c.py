"""The table code of crc32c.h, compiled for tests: the kernels run it only on processors without a CRC instruction."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from typing_extensions import Buffer

import bascule.kernels.wire

HEADERS: Final = Path(bascule.kernels.wire.__file__).parent

SOURCE: Final = """
#include "crc32c.h"
void setup(void) { crc32c_setup(); }
uint32_t portable(const uint8_t *data, size_t size, uint32_t seed) { return crc32c_portable(data, size, seed); }
"""


def crc32c_table(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data` by the table code. Bytes that can be written are read where they are, all others from a copy."""
    view = memoryview(data)
    content = view.tobytes() if view.readonly else (ctypes.c_char * view.nbytes).from_buffer(view)
    result: int = _library().portable(content, view.nbytes, crc)
    return result


@cache
def _library() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "crc32c.so")
        command = ["cc", "-x", "c", "-O2", "-shared", "-fPIC", f"-I{HEADERS}", "-o", str(path), "-"]
        subprocess.run(command, input=SOURCE.encode(), check=True, capture_output=True)
        library = ctypes.CDLL(str(path))
    library.portable.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]
    library.portable.restype = ctypes.c_uint32
    library.setup()
    return library
