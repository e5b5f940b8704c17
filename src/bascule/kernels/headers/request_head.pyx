# The header block of a request, read once. See request_head.pxd.

from binascii import Error as Base64Error
from binascii import a2b_base64

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from bascule.kernels.headers.hpack cimport HPACK_GOOD, HPACK_TOO_LARGE, HeaderField, HeaderSink, HpackDecoder
from bascule.kernels.headers.names cimport (
    NAME_AUTHORITY,
    NAME_CONNECTION,
    NAME_CONTENT_LENGTH,
    NAME_CONTENT_TYPE,
    NAME_GRPC_ENCODING,
    NAME_GRPC_TIMEOUT,
    NAME_INVALID,
    NAME_METHOD,
    NAME_OTHER,
    NAME_PATH,
    NAME_PSEUDO_UNKNOWN,
    NAME_SCHEME,
    NAME_TE,
)
from bascule.kernels.wire.buffers cimport Bytes

cdef enum:
    TIMEOUT_DIGITS_MAX = 8
    METADATA_MAX = 256              # values of one call: commas in one -bin field separate values, each with objects of its own


cdef inline bint equals(const uint8_t* data, size_t size, const char* other, size_t other_size) noexcept nogil:
    return size == other_size and memcmp(data, other, size) == 0


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    return byte == c" " or byte == c"\t"


cdef bint valid_value(const uint8_t* value, size_t size) noexcept nogil:
    # RFC 9113 §8.2.1
    cdef size_t index
    if size == 0:
        return True
    for index in range(size):
        if value[index] == 0 or value[index] == c"\r" or value[index] == c"\n":
            return False
    return not is_blank(value[0]) and not is_blank(value[size - 1])


cdef bint is_grpc_type(const uint8_t* value, size_t size) noexcept nogil:
    if size < 16 or memcmp(value, b"application/grpc", 16) != 0:
        return False
    return size == 16 or value[16] == c"+" or value[16] == c";"


cdef int64_t read_digits(const uint8_t* data, size_t size, size_t digits_max) noexcept nogil:
    # −1 unless these are digits, at least one and not more than so many.
    cdef int64_t result = 0
    cdef size_t index
    if size == 0 or size > digits_max:
        return -1
    for index in range(size):
        if not c"0" <= data[index] <= c"9":
            return -1
        result = result * 10 + (data[index] - c"0")
    return result


cdef double read_timeout(const uint8_t* value, size_t size) noexcept nogil:
    # At most eight digits and a unit; −1 for anything else.
    cdef int64_t number
    cdef uint8_t unit
    if size < 2:
        return -1
    number = read_digits(value, size - 1, TIMEOUT_DIGITS_MAX)
    if number < 0:
        return -1
    unit = value[size - 1]
    if unit == c"H":
        return number * 3600.0
    if unit == c"M":
        return number * 60.0
    if unit == c"S":
        return <double> number
    if unit == c"m":
        return number / 1e3
    if unit == c"u":
        return number / 1e6
    if unit == c"n":
        return number / 1e9
    return -1


cdef uint8_t read_encoding(const uint8_t* value, size_t size) noexcept nogil:
    if equals(value, size, "identity", 8):
        return ENCODING_IDENTITY
    if equals(value, size, "gzip", 4):
        return ENCODING_GZIP
    if equals(value, size, "deflate", 7):
        return ENCODING_DEFLATE
    return ENCODING_UNKNOWN


cdef int append_metadata(list metadata, HeaderField* field) except -1:
    cdef bytes name = PyBytes_FromStringAndSize(<const char*> field.name, field.name_size)
    cdef bytes value = PyBytes_FromStringAndSize(<const char*> field.value, field.value_size)
    cdef int result = METADATA_GOOD
    if not (field.name_size > 4 and memcmp(field.name + field.name_size - 4, b"-bin", 4) == 0):
        metadata.append((name, value))
        return METADATA_GOOD
    if len(metadata) + value.count(b",") >= METADATA_MAX:
        return METADATA_TOO_MUCH
    for part in value.split(b","):
        part = part.strip(b" \t=")
        try:
            metadata.append((name, a2b_base64(part + b"=" * ((4 - len(part) % 4) % 4), strict_mode=True)))
        except Base64Error:
            result = METADATA_BAD
    return result


cdef class RequestHead(HeaderSink):
    def __cinit__(self):
        self.metadata = []
        self.timeout = -1
        self.content_length = -1

    cdef int field(self, HeaderField* field) except -1:
        cdef uint8_t known = field.known
        cdef int added
        if known == NAME_INVALID or known == NAME_CONNECTION or not valid_value(field.value, field.value_size):
            self.malformed = True
        elif NAME_METHOD <= known <= NAME_PSEUDO_UNKNOWN:
            self.pseudo(field)
        else:
            self.seen |= SEEN_REGULAR
            if known == NAME_CONTENT_TYPE:
                self.is_grpc = is_grpc_type(field.value, field.value_size)
            elif known == NAME_TE:
                if not equals(field.value, field.value_size, "trailers", 8):
                    self.malformed = True
            elif known == NAME_GRPC_TIMEOUT:
                self.timeout = read_timeout(field.value, field.value_size)
                self.bad_timeout = self.timeout < 0
            elif known == NAME_GRPC_ENCODING:
                self.encoding = read_encoding(field.value, field.value_size)
            elif known == NAME_CONTENT_LENGTH:
                self.add_length(field)
            elif known == NAME_OTHER:
                added = append_metadata(self.metadata, field)
                self.bad_metadata |= added == METADATA_BAD
                self.too_large |= added == METADATA_TOO_MUCH
        return 0

    cdef int pseudo(self, HeaderField* field) except -1:
        # §8.3: known ones, each once, before all others.
        cdef uint8_t bit
        if field.known == NAME_PATH:
            bit = SEEN_PATH
            self.path = PyBytes_FromStringAndSize(<const char*> field.value, field.value_size)
        elif field.known == NAME_METHOD:
            bit = SEEN_METHOD
            self.is_post = equals(field.value, field.value_size, "POST", 4)
            self.is_connect = equals(field.value, field.value_size, "CONNECT", 7)
        elif field.known == NAME_SCHEME:
            bit = SEEN_SCHEME
        elif field.known == NAME_AUTHORITY:
            bit = SEEN_AUTHORITY
        else:
            self.malformed = True
            return 0
        if self.seen & (bit | SEEN_REGULAR):
            self.malformed = True
        self.seen |= bit
        return 0

    cdef int add_length(self, HeaderField* field) except -1:
        cdef int64_t length = read_digits(field.value, field.value_size, LENGTH_DIGITS_MAX)
        if length < 0 or (self.content_length >= 0 and self.content_length != length):
            self.malformed = True
        self.content_length = length
        return 0

    cdef int close(self) except -1:
        # §8.3.1 and, for CONNECT, §8.5
        cdef uint8_t needed = SEEN_METHOD | SEEN_SCHEME | SEEN_PATH
        if self.is_connect:
            if self.seen & needed != SEEN_METHOD or not self.seen & SEEN_AUTHORITY:
                self.malformed = True
        elif self.seen & needed != needed or not self.path:
            self.malformed = True
        return 0


cdef class TrailerCheck(HeaderSink):
    cdef int field(self, HeaderField* field) except -1:
        # §8.1: no pseudo header in trailers
        if (
            field.known == NAME_INVALID
            or field.known == NAME_CONNECTION
            or NAME_METHOD <= field.known <= NAME_PSEUDO_UNKNOWN
            or not valid_value(field.value, field.value_size)
        ):
            self.malformed = True
        return 0


def read_head(HpackDecoder decoder, block):
    """The head that a block comes to; None when it is no block at all."""
    cdef Bytes given = Bytes(block)
    cdef RequestHead head = RequestHead()
    cdef int result = decoder.decode_block(given.data, given.size, head)
    if result != HPACK_GOOD and result != HPACK_TOO_LARGE:
        return None
    head.too_large |= result == HPACK_TOO_LARGE
    head.close()
    return head
