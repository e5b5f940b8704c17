# HTTP/2 for a server (RFC 9113), without IO: streams that clients open, what a client may not do.

from libc.stdint cimport uint8_t, uint32_t

from bascule.kernels.headers.request_head cimport RequestHead
from bascule.kernels.http2.connection cimport Http2Connection
from bascule.kernels.http2.sender cimport Http2Stream


cdef class Http2Server(Http2Connection):
    # for subclasses
    cdef RequestHead read_head(self, const uint8_t* block, size_t size)         # None when the block is no valid HPACK
    cdef int open_stream(self, uint32_t stream_id, RequestHead head, bint ends) except -1

    cdef int trailers(self, Http2Stream stream, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1
