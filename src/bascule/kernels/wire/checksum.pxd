# CRC-32C for other kernels. Each module that calls crc32c_of() calls crc32c_setup() once when it is imported.

from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c.h" nogil:
    uint32_t crc32c_of(const uint8_t* data, size_t size, uint32_t seed)
    void crc32c_setup()
