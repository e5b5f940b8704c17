# The header block of a NATS message.

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from bascule.kernels.envelope.messages cimport HeaderView


cdef inline Py_ssize_t split_nats_headers(
    const uint8_t* at, size_t size, HeaderView* headers, size_t capacity
) noexcept nogil:
    # "NATS/1.0 …", then a line "name: value" for each, then an empty line. Lines that are none are passed over. −1: too many.
    cdef const uint8_t* end = at + size
    cdef const uint8_t* line_end
    cdef const uint8_t* colon
    cdef const uint8_t* value
    cdef const uint8_t* next_line
    cdef size_t count = 0
    cdef bint is_first = True
    if size < 8 or memcmp(at, b"NATS/1.0", 8) != 0:
        return 0
    while at < end:
        line_end = <const uint8_t*> memchr(at, c"\n", end - at)
        next_line = line_end + 1 if line_end != NULL else end
        if line_end == NULL:
            line_end = end
        if line_end > at and (line_end - 1)[0] == c"\r":
            line_end -= 1
        if line_end == at:
            break
        colon = <const uint8_t*> memchr(at, c":", line_end - at)
        if colon != NULL and colon > at and not is_first:
            if count == capacity:
                return -1
            value = colon + 1
            while value < line_end and (value[0] == c" " or value[0] == c"\t"):
                value += 1
            while line_end > value and ((line_end - 1)[0] == c" " or (line_end - 1)[0] == c"\t"):
                line_end -= 1
            headers[count].name = at
            headers[count].name_size = <uint32_t> (colon - at)
            headers[count].value = value
            headers[count].value_size = <uint32_t> (line_end - value)
            count += 1
        is_first = False
        at = next_line
    return <Py_ssize_t> count
