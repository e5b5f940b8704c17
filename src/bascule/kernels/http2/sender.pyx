# The sending half of an HTTP/2 connection. See sender.pxd.
#
# At the end of the loop turn the shell calls flush(), which cuts DATA frames from the streams with outgoing bytes, in turn, as far as both
# windows and the bound on output allow, and sends `output`. Bytes that fit into a window are sent before a stream waits for that window.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from bascule.kernels.http2.frames cimport *
from bascule.kernels.memory.account cimport MemoryAccount
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    CUT_BYTES_MAX = 65536           # of one stream before the next stream sends, whatever the peer's frame size is
    OWN_RESETS = 64
    OUTGOING_LEAST = 16384
    OUTGOING_SHORT = 4096           # when memory is short
    SPARE_BUFFERS_MAX = 16
    SPARE_BYTES_MAX = 65536
    STEPS_PER_CLOCK = 8             # frames, or streams that were served, between two looks at the clock

NOWHERE = OutputBuffer()

cdef double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double> now.tv_sec + <double> now.tv_nsec / 1e9


cdef class ConnectionLimits:
    def __cinit__(
        self, *, uint32_t streams_max, uint32_t stream_window_bytes, uint32_t connection_window_bytes,
        uint32_t header_list_bytes_max, uint32_t header_block_bytes_max, uint32_t continuations_max, uint32_t output_bytes_max,
        uint32_t outgoing_bytes_max, uint32_t message_bytes_max, uint32_t assembly_bytes_max, uint32_t resets_burst, uint32_t resets_per_second,
        uint32_t pings_burst, uint32_t pings_per_second, uint32_t settings_burst, uint32_t settings_per_second,
        uint32_t idle_frames_burst, uint32_t idle_frames_per_second, uint32_t turn_us_max=0,
    ):
        if not WINDOW_DEFAULT <= connection_window_bytes <= WINDOW_LARGEST or not 1 <= stream_window_bytes <= WINDOW_LARGEST:
            raise ValueError("a window is a number of 31 bits; that of a connection cannot be less than 65,535")
        self.streams_max = streams_max
        self.stream_window_bytes = stream_window_bytes
        self.connection_window_bytes = connection_window_bytes
        self.header_list_bytes_max = header_list_bytes_max
        self.header_block_bytes_max = header_block_bytes_max
        self.continuations_max = continuations_max
        self.output_bytes_max = output_bytes_max
        self.outgoing_bytes_max = outgoing_bytes_max
        self.message_bytes_max = message_bytes_max
        self.assembly_bytes_max = assembly_bytes_max
        self.resets_burst = resets_burst
        self.resets_per_second = resets_per_second
        self.pings_burst = pings_burst
        self.pings_per_second = pings_per_second
        self.settings_burst = settings_burst
        self.settings_per_second = settings_per_second
        self.idle_frames_burst = idle_frames_burst
        self.idle_frames_per_second = idle_frames_per_second
        self.turn_us_max = turn_us_max


cdef class Http2Stream:
    def __cinit__(self):
        self.outgoing = NOWHERE
        self.body_left = -1

    cdef int received_data(self, const uint8_t* data, size_t size) except -1:
        return 0

    cdef int received_end(self) except -1:
        return 0

    cdef int may_send(self) except -1:
        return 0

    cdef int has_ended(self) except -1:
        return 0

    cdef size_t held_bytes(self) noexcept:
        return self.outgoing.capacity

    cdef int shed(self) except -1:
        return 0


cdef class Http2Sender:
    def __cinit__(self, ConnectionLimits limits not None, *args, MemoryAccount memory=None, **kwargs):
        self.limits = limits
        self.memory = memory
        self.output = OutputBuffer()
        self.output.charge_to(memory)
        self.streams = {}
        self.spare_buffers = []
        self.send_window = self.peer_stream_window = WINDOW_DEFAULT
        self.peer_frame_bytes_max = FRAME_BYTES_DEFAULT
        self.response_head = b"\x88"
        self.error_text = ""

    # ── for the shell ──

    @property
    def open_streams(self):
        return len(self.streams)

    @property
    def wants_flush(self):
        return not self.closing and self.queue_first is not None and self.send_window > 0 and self.has_output_room()

    @property
    def unsent(self):
        return self.unsent_bytes

    @unsent.setter
    def unsent(self, size_t size):
        if self.memory is not None:
            self.memory.release(self.unsent_bytes)
            self.memory.charge(size)
        self.unsent_bytes = size

    @property
    def congested(self):
        return self.output.size() + self.unsent_bytes > 2 * <size_t> self.limits.output_bytes_max

    def lost(self):
        self.closing = True
        self.close_all()
        self.output.drop_front(self.output.size())
        self.output.charge_to(None)
        self.spare_buffers.clear()
        self.unsent = 0
        self.memory = None

    def go_away(self):
        if not self.closing and not self.draining:
            self.draining = True
            self.put_goaway(NO_ERROR, "")

    def close(self):
        self.connection_error(NO_ERROR, "")

    # ── streams ──

    cdef Http2Stream find(self, uint32_t stream_id):
        cdef Http2Stream stream = self.recent
        if stream is not None and stream.id == stream_id:
            return stream
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.recent = stream
        return stream

    cdef int register(self, Http2Stream stream, uint32_t stream_id) except -1:
        stream.id = stream_id
        stream.send_window = self.peer_stream_window
        stream.receive_window = self.limits.stream_window_bytes
        if stream.outgoing is NOWHERE:
            stream.outgoing = self.take_buffer()
        self.streams[stream_id] = stream
        self.recent = stream
        return 0

    cdef int close_stream(self, Http2Stream stream) except -1:
        cdef OutputBuffer outgoing = stream.outgoing
        cdef Http2Stream kept = stream  # our table may hold the last reference to the stream
        if kept.closed:
            return 0
        stream.closed = True
        if self.recent is stream:
            self.recent = None
        self.dequeue(stream)
        del self.streams[stream.id]
        stream.outgoing = NOWHERE
        self.return_buffer(outgoing)
        return stream.has_ended()

    cdef int close_all(self) except -1:
        cdef Http2Stream stream
        for stream in list(self.streams.values()):
            self.close_stream(stream)
        return 0

    cdef OutputBuffer take_buffer(self):
        cdef OutputBuffer buffer
        if self.spare_buffers:
            return self.spare_buffers.pop()
        buffer = OutputBuffer()
        buffer.charge_to(self.memory)
        return buffer

    cdef int return_buffer(self, OutputBuffer buffer) except -1:
        if buffer.capacity > SPARE_BYTES_MAX or self.closing:
            buffer.charge_to(None)
        elif len(self.spare_buffers) >= SPARE_BUFFERS_MAX or (self.memory is not None and self.memory.is_short()):
            buffer.charge_to(None)
        else:
            buffer.drop_front(buffer.size())
            self.spare_buffers.append(buffer)
        return 0

    cdef void remember_reset(self, uint32_t stream_id) noexcept:
        self.own_resets[self.own_resets_count % OWN_RESETS] = stream_id
        self.own_resets_count += 1

    cdef bint was_reset_by_us(self, uint32_t stream_id) noexcept:
        cdef uint32_t index
        for index in range(OWN_RESETS):
            if self.own_resets[index] == stream_id:
                return True
        return False

    # ── memory and time ──

    cdef bint is_turn_over(self) noexcept:
        if self.until_clock > 0:
            self.until_clock -= 1
            return False
        self.until_clock = STEPS_PER_CLOCK
        return self.turn_ends > 0 and monotonic() > self.turn_ends

    cdef int check_memory(self) except -1:
        cdef MemoryAccount memory = self.memory
        if memory is None:
            return 0
        if memory.is_exceeded():
            self.shed(memory.most // 2)
        if memory.whole is not None and memory.whole.is_exceeded() and memory.whole.on_exceeded is not None:
            memory.whole.on_exceeded()
        return 0

    def shed(self, size_t down_to):
        # End the streams that hold most until this connection holds no more than `down_to` bytes.
        cdef MemoryAccount memory = self.memory
        cdef Http2Stream stream
        cdef list held
        if memory is None:
            return
        while self.spare_buffers:
            (<OutputBuffer> self.spare_buffers.pop()).charge_to(None)
        if memory.used <= down_to:
            return
        held = sorted([((<Http2Stream> one).held_bytes(), number) for number, one in self.streams.items()], reverse=True)
        for _, number in held:
            if memory.used <= down_to:
                return
            stream = self.streams.get(number)
            if stream is not None:
                stream.shed()

    # ── scheduling ──

    cdef int report(self, object error) except -1:
        if self.on_fault is not None:
            self.on_fault(error)
        return 0

    cdef int notify(self) except -1:
        if not self.output_wanted and self.on_output is not None:
            self.output_wanted = True
            self.on_output()
        return 0

    cdef bint has_output_room(self) noexcept:
        return self.output.size() + self.unsent_bytes < self.limits.output_bytes_max

    cdef size_t outgoing_share(self) noexcept:
        cdef size_t open_streams = <size_t> len(self.streams)
        if self.memory is not None and self.memory.is_short():
            return OUTGOING_SHORT
        return max(<size_t> OUTGOING_LEAST, min(<size_t> OUTGOING_HIGH, self.limits.outgoing_bytes_max // max(<size_t> 1, open_streams)))

    cdef int enqueue(self, Http2Stream stream) except -1:
        if stream.queued or stream.closed:
            return 0
        stream.queued = True
        if self.queue_last is None:
            self.queue_first = stream
        else:
            self.queue_last.queue_next = stream
            stream.queue_previous = self.queue_last
        self.queue_last = stream
        return 0

    cdef int dequeue(self, Http2Stream stream) except -1:
        if not stream.queued:
            return 0
        stream.queued = False
        if stream.queue_previous is None:
            self.queue_first = stream.queue_next
        else:
            stream.queue_previous.queue_next = stream.queue_next
        if stream.queue_next is None:
            self.queue_last = stream.queue_previous
        else:
            stream.queue_next.queue_previous = stream.queue_previous
        stream.queue_next = stream.queue_previous = None
        return 0

    cpdef flush(self):
        self.output_wanted = True               # writes from here on need no other flush
        if self.limits.turn_us_max:
            self.turn_ends = monotonic() + self.limits.turn_us_max / 1e6
        try:
            while not self.closing and self.queue_first is not None and self.send_window > 0 and self.has_output_room():
                self.serve(self.queue_first)
                if self.is_turn_over():
                    break                       # the shell sees `wants_flush`
        finally:
            self.output_wanted = False
        self.check_memory()

    cdef int serve(self, Http2Stream stream) except -1:
        # Send one frame of a stream and let it write more; then the next stream sends.
        self.dequeue(stream)
        if stream.outgoing.size() and stream.send_window > 0:
            self.cut(stream)
        if stream.tail is not None and stream.outgoing.size() == 0:
            return self.end_stream(stream)
        if stream.send_window <= 0:
            return 0                            # WINDOW_UPDATE puts it back
        if stream.tail is None and stream.outgoing.size() <= OUTGOING_LOW and self.send_window > 0:
            stream.may_send()
        if not stream.closed and stream.outgoing.size():
            self.enqueue(stream)
        return 0

    cdef int cut(self, Http2Stream stream) except -1:
        # Cut one frame off the outgoing bytes; the caller has checked that the windows are open.
        cdef OutputBuffer outgoing = stream.outgoing
        cdef int64_t size = min(
            <int64_t> outgoing.size(), stream.send_window, self.send_window, <int64_t> self.peer_frame_bytes_max, CUT_BYTES_MAX
        )
        cdef uint8_t flags = 0
        cdef uint8_t* at
        if not stream.head_sent:
            self.send_head(stream)
        if stream.tail is not None and PyBytes_GET_SIZE(stream.tail) == 0 and size == <int64_t> outgoing.size():
            flags = FLAG_END_STREAM
            stream.end_sent = True
        at = self.reserve(FRAME_HEADER_SIZE + size)
        at = write_frame_header(at, <uint32_t> size, FRAME_DATA, flags, stream.id)
        memcpy(at, outgoing.data + outgoing.start, size)
        self.output.commit(FRAME_HEADER_SIZE + size)
        outgoing.drop_front(size)
        stream.send_window -= size
        self.send_window -= size
        self.calls_answered = True
        return 0

    cdef int end_stream(self, Http2Stream stream) except -1:
        # All outgoing bytes are sent and the stream has ended; the subclass ends it as client or server.
        return 0

    # ── frames ──

    cdef uint8_t* reserve(self, size_t size) except NULL:
        cdef uint8_t* at = self.output.reserve(size)
        if at == NULL:
            raise MemoryError("no memory for frames")
        return at

    cdef int send_head(self, Http2Stream stream) except -1:
        if not stream.head_sent:
            stream.head_sent = True
            self.send_header_block(stream.id, self.response_head, False)
        return 0

    cdef int send_header_block(self, uint32_t stream_id, bytes block, bint ends) except -1:
        cdef size_t size = PyBytes_GET_SIZE(block)
        cdef size_t extra = 0 if self.table_update_sent else 1
        cdef uint8_t flags = FLAG_END_HEADERS | (FLAG_END_STREAM if ends else 0)
        cdef uint8_t* at = self.reserve(FRAME_HEADER_SIZE + extra + size)
        at = write_frame_header(at, <uint32_t> (extra + size), FRAME_HEADERS, flags, stream_id)
        if extra:
            # RFC 7541 §4.2: our table is of size 0, whatever the peer allows now or later.
            at[0] = 0x20
            self.table_update_sent = True
        memcpy(at + extra, PyBytes_AS_STRING(block), size)
        self.output.commit(FRAME_HEADER_SIZE + extra + size)
        self.calls_answered = True
        return self.notify()

    cdef int put_control(self, uint8_t kind, uint8_t flags, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1:
        cdef uint8_t* at = self.reserve(FRAME_HEADER_SIZE + length)
        at = write_frame_header(at, length, kind, flags, stream_id)
        if length:
            memcpy(at, payload, length)
        self.output.commit(FRAME_HEADER_SIZE + length)
        return self.notify()

    cdef int put_rst(self, uint32_t stream_id, uint32_t code) except -1:
        cdef uint8_t[4] payload
        store_be32(payload, code)
        return self.put_control(FRAME_RST_STREAM, 0, stream_id, payload, 4)

    cdef int put_window_update(self, uint32_t stream_id, uint32_t increment) except -1:
        cdef uint8_t[4] payload
        store_be32(payload, increment)
        return self.put_control(FRAME_WINDOW_UPDATE, 0, stream_id, payload, 4)

    cdef int put_goaway(self, uint32_t code, str text) except -1:
        # §6.8: the last id of the peer's streams that was processed
        cdef uint32_t last_id = 0 if self.is_client else self.last_stream_id
        cdef bytes payload = last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode("utf-8")
        return self.put_control(FRAME_GOAWAY, 0, 0, <const uint8_t*> PyBytes_AS_STRING(payload), <uint32_t> PyBytes_GET_SIZE(payload))

    cdef int put_settings(self, tuple settings) except -1:
        cdef bytes payload = b"".join([name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings])
        self.put_control(FRAME_SETTINGS, 0, 0, <const uint8_t*> PyBytes_AS_STRING(payload), <uint32_t> PyBytes_GET_SIZE(payload))
        if self.limits.connection_window_bytes > WINDOW_DEFAULT:
            self.put_window_update(0, self.limits.connection_window_bytes - WINDOW_DEFAULT)
        return 0

    cdef int connection_error(self, uint32_t code, str text) except -1:
        if self.closing:
            return 0
        self.closing = True
        self.error_code = code
        self.error_text = text
        self.put_goaway(code, text)
        return self.close_all()
