# The part of protobuf's wire format that frequent messages need. As in numbers.pxd, readers take the end of the bytes and return the
# position after the value, or NULL for bytes that are not protobuf.
#
# The rules are those of upb, the parser of every current protobuf runtime but Go's and Java's: a number may have ten bytes with any
# bits beyond the 64th, a tag and a length at most five; field number 0 is an error outside of groups; groups nest at most 100 deep.

from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bascule.kernels.wire.numbers cimport varint_size, write_varint

cdef enum WireType:
    WIRE_VARINT = 0
    WIRE_FIXED64 = 1
    WIRE_BYTES = 2
    WIRE_GROUP = 3
    WIRE_GROUP_END = 4
    WIRE_FIXED32 = 5

cdef enum:
    GROUP_DEPTH_MAX = 100


cdef inline const uint8_t* read_long_number(
    const uint8_t* at, const uint8_t* end, int bytes_max, uint64_t* value
) noexcept nogil:
    cdef uint64_t result = 0
    cdef int index
    for index in range(bytes_max):
        if at + index >= end:
            return NULL
        result |= (<uint64_t> (at[index] & 0x7F)) << (7 * index)
        if at[index] < 0x80:
            value[0] = result
            return at + index + 1
    return NULL


cdef inline const uint8_t* read_number(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept nogil:
    if at < end and at[0] < 0x80:
        value[0] = at[0]
        return at + 1
    return read_long_number(at, end, 10, value)


cdef inline const uint8_t* read_tag(const uint8_t* at, const uint8_t* end, uint32_t* tag) noexcept nogil:
    cdef uint64_t value = 0
    if at < end and at[0] < 0x80:
        tag[0] = at[0]
        return at + 1
    at = read_long_number(at, end, 5, &value)
    if at == NULL or value > UINT32_MAX:
        return NULL
    tag[0] = <uint32_t> value
    return at


cdef inline const uint8_t* read_span(
    const uint8_t* at, const uint8_t* end, const uint8_t** data, uint32_t* size
) noexcept nogil:
    cdef uint64_t length = 0
    if at < end and at[0] < 0x80:
        length = at[0]
        at += 1
    else:
        at = read_long_number(at, end, 5, &length)
        if at == NULL:
            return NULL
    if length > <uint64_t> (end - at):
        return NULL
    data[0] = at
    size[0] = <uint32_t> length
    return at + length


cdef inline const uint8_t* skip_plain(const uint8_t* at, const uint8_t* end, uint32_t tag) noexcept nogil:
    # The value of any field but a group.
    cdef uint64_t number = 0
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    cdef uint32_t kind = tag & 7
    if kind == WIRE_VARINT:
        return read_number(at, end, &number)
    if kind == WIRE_BYTES:
        return read_span(at, end, &data, &size)
    size = 8 if kind == WIRE_FIXED64 else 4
    if (kind != WIRE_FIXED64 and kind != WIRE_FIXED32) or end - at < <Py_ssize_t> size:
        return NULL
    return at + size


cdef inline const uint8_t* skip_field(const uint8_t* at, const uint8_t* end, uint32_t tag, int depth_max) noexcept nogil:
    # Skips the value after `tag`, including the fields of a group. Not recursive, because the input decides how deep groups nest.
    cdef uint32_t opened[GROUP_DEPTH_MAX]
    cdef int depth = 0
    if tag & 7 != WIRE_GROUP:
        return skip_plain(at, end, tag)
    while True:
        if tag & 7 == WIRE_GROUP:
            if depth == depth_max:
                return NULL
            opened[depth] = tag >> 3
            depth += 1
        elif tag & 7 == WIRE_GROUP_END:
            depth -= 1
            if opened[depth] != tag >> 3:
                return NULL
            if depth == 0:
                return at
        else:
            at = skip_plain(at, end, tag)
            if at == NULL:
                return NULL
        at = read_tag(at, end, &tag)
        if at == NULL:
            return NULL


# ── writing: fields numbered 1 to 15, omitted if they are empty ──────────────────────────────────


cdef inline size_t number_field_size(int64_t value) noexcept nogil:
    return 1 + varint_size(<uint64_t> value) if value else 0


cdef inline size_t bytes_field_size(size_t size) noexcept nogil:
    return 1 + varint_size(size) + size if size else 0


cdef inline uint8_t* write_number_field(uint8_t* out, uint8_t field, int64_t value) noexcept nogil:
    if value == 0:
        return out
    out[0] = field << 3 | WIRE_VARINT
    return write_varint(out + 1, <uint64_t> value)


cdef inline uint8_t* write_length(uint8_t* out, uint8_t field, size_t size) noexcept nogil:
    out[0] = field << 3 | WIRE_BYTES
    return write_varint(out + 1, size)


cdef inline uint8_t* write_bytes_field(uint8_t* out, uint8_t field, const uint8_t* data, size_t size) noexcept nogil:
    if size == 0:
        return out
    out = write_length(out, field, size)
    memcpy(out, data, size)
    return out + size
