# UTF-8: protobuf requires it for every string; NATS does not for subjects and header names.
#
# Most texts are ASCII, which is checked eight bytes at a time; other texts are checked character by character.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bascule.kernels.wire.numbers cimport load_u64


cdef inline bint is_ascii(const uint8_t* at, size_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint8_t seen = 0
    while end - at >= 8:
        if load_u64(at) & <uint64_t> 0x8080808080808080:
            return False
        at += 8
    while at < end:
        seen |= at[0]
        at += 1
    return seen < 0x80


cdef inline uint32_t character_size(const uint8_t* at, const uint8_t* end, uint32_t* wrong) noexcept nogil:
    # Size of the character at `at` (at < end); 0 if it is invalid. Then `wrong` is the number of bytes that one U+FFFD replaces:
    # the longest valid beginning of a character (Unicode, table 3-7 and "maximal subparts"), or one byte.
    cdef uint8_t lead = at[0]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef uint32_t size, index
    if lead < 0x80:
        return 1
    wrong[0] = 1
    if lead < 0xC2 or lead > 0xF4:
        return 0
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead == 0xE0:
        low = 0xA0          # shorter forms exist
    elif lead == 0xED:
        high = 0x9F         # surrogates
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F         # beyond U+10FFFF
    for index in range(1, size):
        if end - at <= <Py_ssize_t> index or at[index] < low or at[index] > high:
            return 0
        wrong[0] += 1
        low = 0x80
        high = 0xBF
    return size


cdef inline bint is_utf8(const uint8_t* at, size_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint32_t length, wrong = 0
    if is_ascii(at, size):
        return True
    while at < end:
        length = character_size(at, end, &wrong)
        if length == 0:
            return False
        at += length
    return True


# The size of a text with U+FFFD (three bytes) instead of invalid bytes, and the text itself.

cdef inline size_t text_size(const uint8_t* at, size_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint32_t length, wrong = 0
    cdef size_t total = 0
    if is_ascii(at, size):
        return size
    while at < end:
        length = character_size(at, end, &wrong)
        total += length if length else 3
        at += length if length else wrong
    return total


cdef inline uint8_t* write_text(uint8_t* out, const uint8_t* at, size_t size, size_t written_size) noexcept nogil:
    # written_size is the result of text_size(). If it equals the size of the text, the text is valid, or every replaced part had
    # three bytes; only then the text is checked again.
    cdef const uint8_t* end = at + size
    cdef uint32_t length, wrong = 0
    if size == written_size and is_utf8(at, size):
        if size:
            memcpy(out, at, size)
        return out + size
    while at < end:
        length = character_size(at, end, &wrong)
        if length:
            memcpy(out, at, length)
            out += length
            at += length
        else:
            out[0] = 0xEF
            out[1] = 0xBF
            out[2] = 0xBD
            out += 3
            at += wrong
    return out
