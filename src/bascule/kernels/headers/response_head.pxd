# The header block or the trailers of a response, validated after RFC 9113 §8 and interpreted after gRPC, in one pass.

from libc.stdint cimport int64_t, uint8_t

from bascule.kernels.headers.hpack cimport HeaderField, HeaderSink, HpackDecoder


cdef class ResponseHead(HeaderSink):
    cdef readonly int http_status           # −1 without
    cdef readonly int status                # of grpc-status: −1 without, −2 when it is no number
    cdef readonly bytes message             # of grpc-message, percent-decoded; None without
    cdef readonly list metadata             # [(name, value)] bytes, without pseudo headers and grpc's own; -bin decoded, others left out
    cdef readonly bytes content_type        # None without
    cdef readonly int64_t content_length    # −1 without
    cdef readonly bint malformed            # RFC 9113 §8.1.1
    cdef readonly bint too_large
    cdef readonly bint is_grpc              # of its content-type
    cdef readonly uint8_t encoding
    cdef bint regular_seen
    cdef int pseudo(self, HeaderField* field) except -1
    cdef int add_length(self, HeaderField* field) except -1


cdef ResponseHead decode_response(HpackDecoder decoder, const uint8_t* block, size_t size)      # None when the block is no valid HPACK
cdef bytes percent_decode(const uint8_t* data, size_t size)
