# Header names as numbers: a name is compared once, when it is read.

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

cdef enum HeaderName:
    NAME_OTHER = 0
    NAME_INVALID                # RFC 9113 §8.2.1: empty, upper case, or a byte that no name may have
    NAME_METHOD
    NAME_SCHEME
    NAME_PATH
    NAME_AUTHORITY
    NAME_STATUS
    NAME_PSEUDO_UNKNOWN
    NAME_CONTENT_TYPE
    NAME_CONTENT_LENGTH
    NAME_TE
    NAME_CONNECTION             # one of those that HTTP/2 has no use for (§8.2.2)
    NAME_GRPC_TIMEOUT
    NAME_GRPC_ENCODING
    NAME_GRPC_STATUS
    NAME_GRPC_MESSAGE
    NAME_GRPC                   # others that begin with grpc-


cdef inline bint same_name(const uint8_t* name, const char* known, size_t size) noexcept nogil:
    return memcmp(name, known, size) == 0


cdef inline uint8_t classify_pseudo(const uint8_t* name, size_t size) noexcept nogil:
    if size == 5 and same_name(name, ":path", 5):
        return NAME_PATH
    if size == 7 and same_name(name, ":method", 7):
        return NAME_METHOD
    if size == 7 and same_name(name, ":scheme", 7):
        return NAME_SCHEME
    if size == 7 and same_name(name, ":status", 7):
        return NAME_STATUS
    if size == 10 and same_name(name, ":authority", 10):
        return NAME_AUTHORITY
    return NAME_PSEUDO_UNKNOWN


cdef inline uint8_t classify_name(const uint8_t* name, size_t size) noexcept nogil:
    cdef size_t index
    if size == 0:
        return NAME_INVALID
    if name[0] == c":":
        return classify_pseudo(name, size)
    for index in range(size):
        if name[index] <= 0x20 or name[index] >= 0x7F or name[index] == c":" or c"A" <= name[index] <= c"Z":
            return NAME_INVALID
    if size > 5 and same_name(name, "grpc-", 5):
        if size == 12 and same_name(name, "grpc-timeout", 12):
            return NAME_GRPC_TIMEOUT
        if size == 13 and same_name(name, "grpc-encoding", 13):
            return NAME_GRPC_ENCODING
        if size == 11 and same_name(name, "grpc-status", 11):
            return NAME_GRPC_STATUS
        if size == 12 and same_name(name, "grpc-message", 12):
            return NAME_GRPC_MESSAGE
        return NAME_GRPC
    if size == 2 and same_name(name, "te", 2):
        return NAME_TE
    if size == 12 and same_name(name, "content-type", 12):
        return NAME_CONTENT_TYPE
    if size == 14 and same_name(name, "content-length", 14):
        return NAME_CONTENT_LENGTH
    if (
        (size == 10 and (same_name(name, "connection", 10) or same_name(name, "keep-alive", 10)))
        or (size == 7 and same_name(name, "upgrade", 7))
        or (size == 16 and same_name(name, "proxy-connection", 16))
        or (size == 17 and same_name(name, "transfer-encoding", 17))
    ):
        return NAME_CONNECTION
    return NAME_OTHER
