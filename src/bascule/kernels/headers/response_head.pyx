# The header block of a response, read once. See response_head.pxd.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from bascule.kernels.headers.hpack cimport HPACK_GOOD, HPACK_TOO_LARGE, HeaderField, HeaderSink, HpackDecoder
from bascule.kernels.headers.names cimport (
    NAME_CONNECTION,
    NAME_CONTENT_LENGTH,
    NAME_CONTENT_TYPE,
    NAME_GRPC_ENCODING,
    NAME_GRPC_MESSAGE,
    NAME_GRPC_STATUS,
    NAME_INVALID,
    NAME_METHOD,
    NAME_OTHER,
    NAME_PSEUDO_UNKNOWN,
    NAME_STATUS,
)
from bascule.kernels.headers.request_head cimport (
    LENGTH_DIGITS_MAX,
    append_metadata,
    is_grpc_type,
    read_digits,
    read_encoding,
    valid_value,
)
from bascule.kernels.wire.buffers cimport Bytes

cdef enum:
    HTTP_STATUS_DIGITS = 3
    STATUS_DIGITS_MAX = 9
    STATUS_ABSENT = -1
    STATUS_UNREADABLE = -2


cdef inline int hex_digit(uint8_t byte) noexcept nogil:
    if c"0" <= byte <= c"9":
        return byte - c"0"
    if c"A" <= byte <= c"F":
        return byte - c"A" + 10
    if c"a" <= byte <= c"f":
        return byte - c"a" + 10
    return -1


cdef bytes percent_decode(const uint8_t* data, size_t size):
    # A percent sign without two hexadecimal digits stays: a badly encoded status text is still readable.
    cdef bytes result = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(result)
    cdef uint8_t* out = start
    cdef size_t at = 0
    while at < size:
        if data[at] == c"%" and size - at > 2 and hex_digit(data[at + 1]) >= 0 and hex_digit(data[at + 2]) >= 0:
            out[0] = <uint8_t> (hex_digit(data[at + 1]) * 16 + hex_digit(data[at + 2]))
            at += 3
        else:
            out[0] = data[at]
            at += 1
        out += 1
    return result[: out - start]


cdef class ResponseHead(HeaderSink):
    def __cinit__(self):
        self.http_status = -1
        self.status = STATUS_ABSENT
        self.content_length = -1
        self.metadata = []

    cdef int field(self, HeaderField* field) except -1:
        cdef uint8_t known = field.known
        if known == NAME_INVALID or known == NAME_CONNECTION or not valid_value(field.value, field.value_size):
            self.malformed = True
            return 0
        if NAME_METHOD <= known <= NAME_PSEUDO_UNKNOWN:
            return self.pseudo(field)
        self.regular_seen = True
        if known == NAME_CONTENT_TYPE:
            self.content_type = PyBytes_FromStringAndSize(<const char*> field.value, field.value_size)
            self.is_grpc = is_grpc_type(field.value, field.value_size)
        elif known == NAME_GRPC_STATUS:
            self.status = <int> read_digits(field.value, field.value_size, STATUS_DIGITS_MAX)
            if self.status < 0:
                self.status = STATUS_UNREADABLE
        elif known == NAME_GRPC_MESSAGE:
            self.message = percent_decode(field.value, field.value_size)
        elif known == NAME_GRPC_ENCODING:
            self.encoding = read_encoding(field.value, field.value_size)
        elif known == NAME_CONTENT_LENGTH:
            return self.add_length(field)
        elif known == NAME_OTHER:
            append_metadata(self.metadata, field)
        return 0

    cdef int pseudo(self, HeaderField* field) except -1:
        # §8.3.2: `:status` of three digits, once, before all others; nothing else.
        cdef int64_t status = -1
        if field.known == NAME_STATUS and field.value_size == HTTP_STATUS_DIGITS:
            status = read_digits(field.value, field.value_size, HTTP_STATUS_DIGITS)
        if status < 100 or self.regular_seen or self.http_status >= 0:
            self.malformed = True
        else:
            self.http_status = <int> status
        return 0

    cdef int add_length(self, HeaderField* field) except -1:
        cdef int64_t length = read_digits(field.value, field.value_size, LENGTH_DIGITS_MAX)
        if length < 0 or (self.content_length >= 0 and self.content_length != length):
            self.malformed = True
        self.content_length = length
        return 0


cdef ResponseHead decode_response(HpackDecoder decoder, const uint8_t* block, size_t size):
    cdef ResponseHead head = ResponseHead()
    cdef int result = decoder.decode_block(block, size, head)
    if result != HPACK_GOOD and result != HPACK_TOO_LARGE:
        return None
    head.too_large = result == HPACK_TOO_LARGE
    return head
