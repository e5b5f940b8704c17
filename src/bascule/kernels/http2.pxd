# HTTP/2 for a server (RFC 9113), without IO: bytes of the peer go in, frames come out in `output`.
#
# A connection never raises for what a peer does: its fault puts GOAWAY with the right code into `output` and sets `closing`.
# A stream is a passive record of windows and state with a few hooks; what its bytes mean is the business of a subclass.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.hpack cimport HpackDecoder
from bascule.kernels.output cimport OutputBuffer
from bascule.kernels.request_head cimport RequestHead


cdef class ReceiveBuffer:
    # Where sockets are read into. One serves all connections of a loop: whatever a read leaves unfinished is moved out of it at once.
    cdef uint8_t* data
    cdef readonly size_t size


cdef class ConnectionLimits:
    # Bounds of one connection, shared by all of a server. What each is for stands in limits.py.
    cdef readonly uint32_t streams_max
    cdef readonly uint32_t stream_window_bytes
    cdef readonly uint32_t connection_window_bytes
    cdef readonly uint32_t header_list_bytes_max
    cdef readonly uint32_t header_block_bytes_max
    cdef readonly uint32_t continuations_max
    cdef readonly uint32_t output_bytes_max
    cdef readonly uint32_t message_bytes_max
    cdef readonly uint32_t assembly_bytes_max
    cdef readonly uint32_t resets_burst
    cdef readonly uint32_t resets_per_second
    cdef readonly uint32_t pings_burst
    cdef readonly uint32_t pings_per_second
    cdef readonly uint32_t settings_burst
    cdef readonly uint32_t settings_per_second
    cdef readonly uint32_t idle_frames_burst
    cdef readonly uint32_t idle_frames_per_second


cdef struct Allowance:
    # A bucket that a peer's costly frames are taken from and that time refills.
    double left
    double most
    double per_second


cdef class Http2Stream:
    cdef readonly uint32_t id
    cdef readonly bint half_closed              # the peer has sent its last byte
    cdef readonly bint closed
    cdef OutputBuffer outgoing                  # body that waits to be cut into DATA frames
    cdef bytes tail                             # header block that ends the stream once `outgoing` is empty; None as long as it goes on
    cdef bint head_sent                         # response headers are in the connection's output
    cdef bint queued                            # in the connection's queue of streams to be flushed
    cdef bint withheld                          # the peer gets no more window for this stream
    cdef Http2Stream queue_next
    cdef int64_t send_window
    cdef int64_t receive_window
    cdef uint32_t receive_consumed              # bytes that came in and that the peer was not given back yet
    cdef int64_t body_left                      # of the announced content-length; −1 when none was announced
    cdef int received_data(self, const uint8_t* data, size_t size) except -1
    cdef int received_end(self) except -1
    cdef int has_room(self) except -1           # windows are open and little is outgoing
    cdef int has_ended(self) except -1          # exactly once, after it has left the connection


cdef class Http2Connection:
    cdef readonly OutputBuffer output           # frames to be sent
    cdef public size_t unsent                   # set by the shell: bytes the transport still holds
    cdef public object on_output                # called without arguments, at most once between two flushes, when there is something to send
    cdef public object on_fault                 # called with an exception that one of our own hooks raised
    cdef readonly bint closing                  # to be closed once `output` is sent; nothing more is read
    cdef readonly bint draining                 # GOAWAY is out: calls in progress go on, new ones are not looked at
    cdef readonly bint peer_leaving             # the peer has sent GOAWAY: it will open no more streams
    cdef readonly uint32_t error_code           # of the GOAWAY that ended this connection
    cdef readonly str error_text
    cdef readonly uint32_t last_stream_id
    cdef readonly ConnectionLimits limits
    cdef HpackDecoder decoder
    cdef dict streams
    cdef list spare_buffers
    cdef Http2Stream recent                     # the stream looked up last: most frames are for the same as the one before
    cdef Http2Stream queue_first
    cdef Http2Stream queue_last
    cdef bint output_wanted                     # `on_output` was called and flush() not yet
    cdef bint table_update_sent                 # the first header block tells the peer that we keep no table
    cdef int64_t send_window
    cdef int64_t peer_stream_window
    cdef uint32_t peer_frame_bytes_max
    cdef int64_t receive_window
    cdef uint32_t receive_consumed
    cdef ReceiveBuffer receive_buffer
    cdef uint8_t* partial                       # the beginning of a frame whose rest has not arrived
    cdef size_t partial_size
    cdef size_t partial_capacity
    cdef uint32_t preface_seen                  # bytes of the client's preface
    cdef bint settings_seen
    cdef OutputBuffer block                     # a header block that CONTINUATION goes on with; None outside of one
    cdef uint32_t block_stream
    cdef bint block_ends_stream
    cdef uint32_t block_frames
    cdef uint32_t[64] own_resets                # ids of streams that were closed while the peer may have been sending, newest last
    cdef uint32_t own_resets_count
    cdef double refilled_at
    cdef Allowance resets
    cdef Allowance pings
    cdef Allowance settings_frames
    cdef Allowance idle_frames

    # for subclasses
    cdef RequestHead read_head(self, const uint8_t* block, size_t size)          # None when the block is no valid HPACK
    cdef int open_stream(self, uint32_t stream_id, RequestHead head, bint ends) except -1
    cdef int register(self, Http2Stream stream, uint32_t stream_id) except -1
    cdef int report(self, object error) except -1
    cdef int notify(self) except -1             # there is something to send
    cdef int enqueue(self, Http2Stream stream) except -1
    cdef int send_head(self, Http2Stream stream) except -1
    cdef int send_header_block(self, uint32_t stream_id, bytes block, bint ends) except -1
    cdef int end_stream(self, Http2Stream stream) except -1
    cdef int give_window(self, Http2Stream stream) except -1
    cdef int reset_stream(self, Http2Stream stream, uint32_t code) except -1
    cdef int connection_error(self, uint32_t code, str text) except -1
    cdef bint has_output_room(self) noexcept
    cpdef flush(self)

    # frames, one method each
    cdef int consume(self, const uint8_t* data, size_t size) except -1
    cdef size_t consume_preface(self, const uint8_t* data, size_t size) except? 0
    cdef size_t complete_partial(self, const uint8_t* data, size_t size) except? 0
    cdef int keep_partial(self, const uint8_t* data, size_t size, size_t capacity) except -1
    cdef int frame(self, const uint8_t* header, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_data(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_headers(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_continuation(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_rst_stream(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_settings(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_ping(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_window_update(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int frame_priority(self, uint32_t stream_id, uint32_t length) except -1
    cdef int apply_setting(self, uint32_t name, uint32_t value) except -1
    cdef int move_windows(self, int64_t difference) except -1
    cdef int header_block(self, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1
    cdef int trailers(self, Http2Stream stream, bint ends, const uint8_t* block, size_t size) except -1
    cdef int data_of_closed(self, uint32_t stream_id, uint32_t length) except -1
    cdef int end_of_body(self, Http2Stream stream) except -1
    cdef int cut(self, Http2Stream stream) except -1
    cdef int close_stream(self, Http2Stream stream) except -1
    cdef int close_all(self) except -1
    cdef Http2Stream find(self, uint32_t stream_id)
    cdef int put_control(self, uint8_t kind, uint8_t flags, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int put_rst(self, uint32_t stream_id, uint32_t code) except -1
    cdef int put_window_update(self, uint32_t stream_id, uint32_t increment) except -1
    cdef int put_settings(self) except -1
    cdef bint was_reset_by_us(self, uint32_t stream_id) noexcept
    cdef void refill(self, double now) noexcept
    cdef bint take(self, Allowance* allowance) except -1
    cdef OutputBuffer take_buffer(self)
    cdef void return_buffer(self, OutputBuffer buffer)
