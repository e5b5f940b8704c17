# The header block of a request, validated after RFC 9113 §8 and interpreted after gRPC, in one pass over its fields.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from bascule.kernels.headers.hpack cimport HeaderField, HeaderSink

cdef enum MessageEncoding:
    ENCODING_IDENTITY = 0
    ENCODING_GZIP
    ENCODING_DEFLATE
    ENCODING_UNKNOWN

cdef enum:
    SEEN_METHOD = 1
    SEEN_SCHEME = 2
    SEEN_PATH = 4
    SEEN_AUTHORITY = 8
    SEEN_REGULAR = 16

cdef enum:
    LENGTH_DIGITS_MAX = 18

cdef enum:
    METADATA_GOOD = 0
    METADATA_BAD                    # a -bin value is no base64
    METADATA_TOO_MUCH

# for the heads of responses
cdef bint valid_value(const uint8_t* value, size_t size) noexcept nogil
cdef bint is_grpc_type(const uint8_t* value, size_t size) noexcept nogil
cdef int64_t read_digits(const uint8_t* data, size_t size, size_t digits_max) noexcept nogil
cdef uint8_t read_encoding(const uint8_t* value, size_t size) noexcept nogil
cdef int append_metadata(list metadata, HeaderField* field) except -1       # METADATA_…


cdef class RequestHead(HeaderSink):
    # Shared by all calls with the same header block; immutable after close().
    cdef readonly bytes path                # None when the request has none
    cdef readonly list metadata
    cdef readonly double timeout            # seconds, −1 without
    cdef readonly int64_t content_length    # −1 without
    cdef readonly bint malformed            # RFC 9113 §8.1.1: to be answered with RST_STREAM
    cdef readonly bint too_large
    cdef readonly bint is_post
    cdef readonly bint is_connect
    cdef readonly bint is_grpc              # of its content-type
    cdef readonly bint bad_metadata         # a -bin value that is no base64
    cdef readonly bint bad_timeout
    cdef readonly uint8_t encoding
    cdef object route                       # found in the server's routes once
    cdef uint8_t seen
    cdef int pseudo(self, HeaderField* field) except -1
    cdef int add_length(self, HeaderField* field) except -1
    cdef int close(self) except -1          # after the last field


cdef class TrailerCheck(HeaderSink):
    cdef readonly bint malformed
