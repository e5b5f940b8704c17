# Reads and writes numbers in byte buffers: the only place where bounds are checked.
#
# Every reader takes the end of the readable bytes and returns the position after the value, or NULL if the bytes end first or are
# invalid. No other code in the kernels moves a pointer by a number from the network or the disk.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

# The formats are little-endian, and numbers are copied from memory unchanged.
cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "Bascule needs a little-endian machine"
    #endif
    """


cdef inline uint32_t load_u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint16_t load_u16(const uint8_t* at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint64_t load_u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline void store_u16(uint8_t* at, uint16_t value) noexcept nogil:
    memcpy(at, &value, 2)


cdef inline void store_u32(uint8_t* at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void store_u64(uint8_t* at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


cdef inline const uint8_t* read_varint(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept nogil:
    # LEB128, at most ten bytes; the tenth may only hold the 64th bit.
    cdef uint64_t result = 0
    cdef int shift = 0
    cdef uint8_t byte
    if at < end and at[0] < 0x80:
        value[0] = at[0]
        return at + 1
    while at < end:
        byte = at[0]
        at += 1
        if shift == 63 and byte > 1:
            return NULL
        result |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            value[0] = result
            return at
        shift += 7
        if shift > 63:
            return NULL
    return NULL


cdef inline const uint8_t* read_bytes(
    const uint8_t* at, const uint8_t* end, const uint8_t** data, uint32_t* size
) noexcept nogil:
    # A varint length, and the bytes after it.
    cdef uint64_t length = 0
    at = read_varint(at, end, &length)
    if at == NULL or length > <uint64_t> (end - at):
        return NULL
    data[0] = at
    size[0] = <uint32_t> length
    return at + length


cdef inline uint8_t* write_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t> (value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t> value
    return at + 1


cdef inline uint8_t* write_bytes(uint8_t* at, const uint8_t* data, uint32_t size) noexcept nogil:
    at = write_varint(at, size)
    if size:
        memcpy(at, data, size)
    return at + size


cdef inline uint32_t varint_size(uint64_t value) noexcept nogil:
    cdef uint32_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size
