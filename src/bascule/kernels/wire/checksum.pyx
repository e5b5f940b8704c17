from libc.stdint cimport uint32_t

from bascule.kernels.wire.buffers cimport Bytes

crc32c_setup()


def crc32c(data, uint32_t crc=0):
    cdef Bytes source = Bytes(data)
    cdef uint32_t result
    with nogil:
        result = crc32c_of(source.data, source.size, crc)
    return result
