# Frames of HTTP/2 (RFC 9113 §4 and §6) as bytes: numbers of types, flags, settings and errors, and the nine bytes before a payload.
#
#     | length u24 | type u8 | flags u8 | stream id u31 |     big-endian

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    FRAME_HEADER_SIZE = 9
    FRAME_BYTES_DEFAULT = 16384         # default and minimum of SETTINGS_MAX_FRAME_SIZE
    FRAME_BYTES_LARGEST = 16777215
    WINDOW_DEFAULT = 65535
    WINDOW_LARGEST = 2147483647
    STREAM_ID_MASK = 0x7FFFFFFF
    PREFACE_SIZE = 24

cdef enum FrameType:
    FRAME_DATA = 0
    FRAME_HEADERS = 1
    FRAME_PRIORITY = 2
    FRAME_RST_STREAM = 3
    FRAME_SETTINGS = 4
    FRAME_PUSH_PROMISE = 5
    FRAME_PING = 6
    FRAME_GOAWAY = 7
    FRAME_WINDOW_UPDATE = 8
    FRAME_CONTINUATION = 9

cdef enum:
    FLAG_ACK = 0x1
    FLAG_END_STREAM = 0x1
    FLAG_END_HEADERS = 0x4
    FLAG_PADDED = 0x8
    FLAG_PRIORITY = 0x20

cdef enum Setting:
    SETTING_HEADER_TABLE_SIZE = 1
    SETTING_ENABLE_PUSH = 2
    SETTING_MAX_CONCURRENT_STREAMS = 3
    SETTING_INITIAL_WINDOW_SIZE = 4
    SETTING_MAX_FRAME_SIZE = 5
    SETTING_MAX_HEADER_LIST_SIZE = 6

cdef enum ErrorCode:
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12


cdef inline uint32_t load_be24(const uint8_t* at) noexcept nogil:
    return (<uint32_t> at[0] << 16) | (<uint32_t> at[1] << 8) | at[2]


cdef inline uint32_t load_be32(const uint8_t* at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | (<uint32_t> at[1] << 16) | (<uint32_t> at[2] << 8) | at[3]


cdef inline void store_be32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value


cdef inline uint8_t* write_frame_header(uint8_t* at, uint32_t length, uint8_t kind, uint8_t flags, uint32_t stream_id) noexcept nogil:
    at[0] = <uint8_t> (length >> 16)
    at[1] = <uint8_t> (length >> 8)
    at[2] = <uint8_t> length
    at[3] = kind
    at[4] = flags
    store_be32(at + 5, stream_id)
    return at + FRAME_HEADER_SIZE
