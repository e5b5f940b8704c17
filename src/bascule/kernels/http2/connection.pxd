# HTTP/2 (RFC 9113) without IO, as far as both roles do the same: bytes of the peer go in, frames come out in `output`.
#
# A connection never raises for what a peer does: its fault puts GOAWAY with the right code into `output` and sets `closing`.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.headers.hpack cimport HpackDecoder
from bascule.kernels.http2.sender cimport Http2Sender, Http2Stream
from bascule.kernels.wire.output cimport OutputBuffer

cdef const char* PREFACE         # what a client says first (§3.4), PREFACE_SIZE bytes


cdef class ReceiveBuffer:
    # Where sockets are read into. One serves all connections of a loop: whatever a read leaves unfinished is moved out of it at once.
    cdef uint8_t* data
    cdef readonly size_t size


cdef struct Allowance:
    # A bucket that a peer's costly frames are taken from and that time refills.
    double left
    double most
    double per_second


cdef class Http2Connection(Http2Sender):
    cdef readonly bint peer_leaving             # the peer has sent GOAWAY: no more streams are opened
    cdef readonly uint64_t pings_answered       # of ours
    cdef HpackDecoder decoder
    cdef int64_t receive_window
    cdef uint32_t receive_consumed
    cdef ReceiveBuffer receive_buffer
    cdef uint8_t* partial                       # the beginning of a frame whose rest has not arrived
    cdef size_t partial_size
    cdef size_t partial_capacity
    cdef uint8_t* backlog                       # whole frames of a read whose turn was over
    cdef size_t backlog_start
    cdef size_t backlog_end
    cdef uint32_t preface_left                  # bytes of the client's preface that have not come yet; a server waits for them
    cdef uint32_t frame_bytes_max               # the largest frame that we have announced
    cdef bint settings_seen
    cdef bint settings_acknowledged             # the peer knows our limits
    cdef OutputBuffer block                     # a header block that CONTINUATION goes on with; None outside of one
    cdef uint32_t block_stream
    cdef bint block_ends_stream
    cdef uint32_t block_frames
    cdef double refilled_at
    cdef Allowance resets
    cdef Allowance pings
    cdef Allowance settings_frames
    cdef Allowance idle_frames

    # what the roles do differently
    cdef size_t consume_preface(self, const uint8_t* data, size_t size) except? 0
    cdef int header_block(self, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1
    cdef int data_of_closed(self, uint32_t stream_id) except -1
    cdef int stream_was_reset(self, Http2Stream stream, uint32_t code) except -1
    cdef int reset_stream(self, Http2Stream stream, uint32_t code, str why) except -1       # for what the peer did to it

    cdef int give_window(self, Http2Stream stream) except -1
    cdef int end_of_body(self, Http2Stream stream) except -1

    cdef int consume(self, const uint8_t* data, size_t size) except -1
    cdef size_t consume_frames(self, const uint8_t* data, size_t size, bint* over) except? 0       # `over`: the turn was, before the last frame
    cdef int keep_backlog(self, const uint8_t* data, size_t size) except -1
    cdef int drop_backlog(self) except -1
    cdef int begin_turn(self) except -1
    cdef int drop_partial(self) except -1
    cdef size_t complete_partial(self, const uint8_t* data, size_t size) except? 0
    cdef size_t fill_partial(self, const uint8_t* data, size_t size, size_t wanted) except? 0
    cdef int frame(self, const uint8_t* header, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_data(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_headers(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_continuation(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_rst_stream(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_settings(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_goaway(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_ping(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_window_update(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_priority(self, uint32_t stream_id, uint32_t length) except -1
    cdef int apply_setting(self, uint32_t name, uint32_t value, int64_t* window) except -1
    cdef int move_windows(self, int64_t difference) except -1
    cdef void refill(self, double now) noexcept
    cdef bint take(self, Allowance* allowance, str what, double cost=*) except -1       # True when nothing was left and the connection ends
