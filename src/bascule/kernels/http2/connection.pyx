# HTTP/2 (RFC 9113) without IO: received frames, for client and server. See connection.pxd.
#
# The shell passes bytes to received(); the answers are in `output` or in the `outgoing` of streams afterwards. At the end of the loop
# turn the shell calls flush(), which cuts DATA frames from the streams with outgoing bytes, in turn, as far as both windows and the
# bound on output allow, and sends `output`. Bytes that fit into a window are always sent before a stream waits for that window.
#
# Memory that a peer can make us hold is bounded: streams by their number, a stream by OUTGOING_HIGH and by its own messages, output by the
# bound above which no frame is cut and by the shell, which stops reading while `congested`; all together by the connection's account.
#
# Time is bounded, too: a read whose frames take longer than `turn_us_max` keeps the rest in a backlog, and the shell calls go_on() in a
# later turn of its loop. DATA of calls that kernels answer is never that slow.

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from bascule.kernels.headers.hpack cimport HpackDecoder
from bascule.kernels.http2.frames cimport *
from bascule.kernels.http2.sender cimport ConnectionLimits, Http2Sender, Http2Stream, monotonic
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.memory.account cimport MemoryAccount
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    HEADER_TABLE_BYTES = 4096       # the default, which needs no SETTINGS
    STREAMS_PER_SETTINGS = 1000     # streams whose windows change at the cost of one more SETTINGS frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


cdef class ReceiveBuffer:
    def __cinit__(self, size_t size):
        self.data = <uint8_t*> malloc(size)
        if self.data == NULL:
            raise MemoryError("no memory for a receive buffer")
        self.size = size

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass


cdef void fill(Allowance* allowance, uint32_t burst, uint32_t per_second) noexcept:
    allowance.left = allowance.most = burst
    allowance.per_second = per_second


cdef void add_time(Allowance* allowance, double seconds) noexcept:
    allowance.left = min(allowance.most, allowance.left + seconds * allowance.per_second)


cdef class Http2Connection(Http2Sender):
    def __cinit__(self, ConnectionLimits limits not None, ReceiveBuffer receive_buffer=None, *args, **kwargs):
        self.receive_buffer = receive_buffer
        self.decoder = HpackDecoder(HEADER_TABLE_BYTES, limits.header_list_bytes_max)
        self.receive_window = limits.connection_window_bytes
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        self.refilled_at = -1
        fill(&self.resets, limits.resets_burst, limits.resets_per_second)
        fill(&self.pings, limits.pings_burst, limits.pings_per_second)
        fill(&self.settings_frames, limits.settings_burst, limits.settings_per_second)
        fill(&self.idle_frames, limits.idle_frames_burst, limits.idle_frames_per_second)

    def __dealloc__(self):
        free(self.partial)
        free(self.backlog)

    # ── for the shell ──

    @property
    def established(self):
        return self.settings_seen

    def get_buffer(self):
        return self.receive_buffer

    def received(self, size_t count):
        if self.receive_buffer is None or count > self.receive_buffer.size:
            raise ValueError("more bytes were received than there is room for")
        self.begin_turn()
        self.consume(self.receive_buffer.data, count)

    @property
    def has_backlog(self):
        return self.backlog != NULL

    def go_on(self):
        # Frames of the backlog, until this turn is over too.
        cdef uint8_t* data = self.backlog
        cdef size_t start = self.backlog_start, end = self.backlog_end
        cdef bint over = False
        cdef MemoryAccount memory = self.memory
        if data == NULL:
            return
        self.begin_turn()
        self.backlog = NULL                     # a hook may end the connection
        try:
            start += self.consume_frames(data + start, end - start, &over)
            if not over and start < end and not self.closing:
                start += self.complete_partial(data + start, end - start)
            if start < end and not self.closing and self.backlog == NULL:
                self.backlog, self.backlog_start, self.backlog_end = data, start, end
                data = NULL
        finally:
            if data != NULL:
                free(data)
                if memory is not None:
                    memory.release(end)
        self.check_memory()

    def lost(self):
        self.drop_partial()
        self.drop_backlog()
        self.block = None
        Http2Sender.lost(self)

    cdef int drop_partial(self) except -1:
        if self.memory is not None:
            self.memory.release(self.partial_capacity)
        free(self.partial)
        self.partial = NULL
        self.partial_size = self.partial_capacity = 0
        return 0

    cdef int drop_backlog(self) except -1:
        if self.backlog != NULL:
            if self.memory is not None:
                self.memory.release(self.backlog_end)
            free(self.backlog)
            self.backlog = NULL
        return 0

    cdef int begin_turn(self) except -1:
        cdef double now = monotonic()
        self.refill(now)
        self.turn_ends = now + self.limits.turn_us_max / 1e6 if self.limits.turn_us_max else 0
        return 0

    def feed(self, data, double now=-1):
        cdef Bytes given = Bytes(data)
        self.refill(now if now >= 0 else monotonic())
        self.turn_ends = 0
        self.consume(given.data, given.size)

    # ── against floods ──

    cdef void refill(self, double now) noexcept:
        cdef double seconds = now - self.refilled_at
        if self.refilled_at >= 0 and seconds > 0:
            add_time(&self.resets, seconds)
            add_time(&self.pings, seconds)
            add_time(&self.settings_frames, seconds)
            add_time(&self.idle_frames, seconds)
        self.refilled_at = now

    cdef bint take(self, Allowance* allowance, str what, double cost=1) except -1:
        if allowance.left >= cost:
            allowance.left -= cost
            return False
        self.connection_error(ENHANCE_YOUR_CALM, what)
        return True

    # ── bytes into frames ──

    cdef int consume(self, const uint8_t* data, size_t size) except -1:
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef bint over = False
        if self.closing:
            return 0
        if self.backlog != NULL:
            return self.keep_backlog(data, size)    # a transport may deliver bytes that it had when reading was paused
        if self.preface_left:
            at += self.consume_preface(at, end - at)
        if self.partial_size and at < end:
            at += self.complete_partial(at, end - at)
        at += self.consume_frames(at, end - at, &over)
        if at < end and not self.closing:
            if over:
                self.keep_backlog(at, end - at)
            else:
                self.complete_partial(at, end - at)
        return self.check_memory()

    cdef size_t consume_frames(self, const uint8_t* data, size_t size, bint* over) except? 0:
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef uint32_t length
        while not self.closing and end - at >= FRAME_HEADER_SIZE:
            length = load_be24(at)
            if length > self.frame_bytes_max:
                self.connection_error(FRAME_SIZE_ERROR, "a frame is larger than the largest that was announced")
                break
            if end - at < FRAME_HEADER_SIZE + <Py_ssize_t> length:
                break
            self.frame(at, at + FRAME_HEADER_SIZE, length)
            at += FRAME_HEADER_SIZE + length
            if self.is_turn_over():
                over[0] = True
                break
        return at - data

    cdef int keep_backlog(self, const uint8_t* data, size_t size) except -1:
        cdef size_t before = self.backlog_end if self.backlog != NULL else 0
        cdef uint8_t* grown = <uint8_t*> realloc(self.backlog, before + size)
        if grown == NULL:
            raise MemoryError("no memory for frames that were received")
        if before == 0:
            self.backlog_start = 0
        memcpy(grown + before, data, size)
        self.backlog = grown
        self.backlog_end = before + size
        if self.memory is not None:
            self.memory.charge(size)
        return 0

    cdef size_t consume_preface(self, const uint8_t* data, size_t size) except? 0:
        return 0

    cdef size_t complete_partial(self, const uint8_t* data, size_t size) except? 0:
        # Take bytes from `data` for an incomplete frame, and handle the frame when it is complete.
        cdef size_t taken = 0
        cdef uint32_t length
        cdef uint8_t* whole
        if self.partial_size < FRAME_HEADER_SIZE:
            taken = self.fill_partial(data, size, FRAME_HEADER_SIZE)
            if self.partial_size < FRAME_HEADER_SIZE:
                return taken
        length = load_be24(self.partial)
        if length > self.frame_bytes_max:
            self.connection_error(FRAME_SIZE_ERROR, "a frame is larger than the largest that was announced")
            return size
        taken += self.fill_partial(data + taken, size - taken, FRAME_HEADER_SIZE + length)
        if self.partial_size == FRAME_HEADER_SIZE + length:
            whole = self.partial
            if self.memory is not None:
                self.memory.release(self.partial_capacity)
            self.partial = NULL
            self.partial_size = self.partial_capacity = 0
            try:
                self.frame(whole, whole + FRAME_HEADER_SIZE, length)
            finally:
                free(whole)
        return taken

    cdef size_t fill_partial(self, const uint8_t* data, size_t size, size_t wanted) except? 0:
        cdef size_t taken = min(size, wanted - self.partial_size)
        cdef uint8_t* grown
        if wanted > self.partial_capacity:
            grown = <uint8_t*> realloc(self.partial, wanted)
            if grown == NULL:
                raise MemoryError("no memory for a frame")
            if self.memory is not None:
                self.memory.charge(wanted - self.partial_capacity)
            self.partial = grown
            self.partial_capacity = wanted
        memcpy(self.partial + self.partial_size, data, taken)
        self.partial_size += taken
        return taken

    cdef int frame(self, const uint8_t* header, const uint8_t* payload, uint32_t length) except -1:
        cdef uint8_t kind = header[3]
        cdef uint8_t flags = header[4]
        cdef uint32_t stream_id = load_be32(header + 5) & STREAM_ID_MASK
        if not self.settings_seen and (kind != FRAME_SETTINGS or flags & FLAG_ACK):
            return self.connection_error(PROTOCOL_ERROR, "the first frame must be SETTINGS")                # §3.4
        if self.block is not None and (kind != FRAME_CONTINUATION or stream_id != self.block_stream):
            return self.connection_error(PROTOCOL_ERROR, "a header block was interrupted")                  # §6.10
        if kind == FRAME_DATA:
            return self.frame_data(stream_id, flags, payload, length)
        if kind == FRAME_HEADERS:
            return self.frame_headers(stream_id, flags, payload, length)
        if kind == FRAME_WINDOW_UPDATE:
            return self.frame_window_update(stream_id, payload, length)
        if kind == FRAME_PING:
            return self.frame_ping(stream_id, flags, payload, length)
        if kind == FRAME_RST_STREAM:
            return self.frame_rst_stream(stream_id, payload, length)
        if kind == FRAME_SETTINGS:
            return self.frame_settings(stream_id, flags, payload, length)
        if kind == FRAME_CONTINUATION:
            return self.frame_continuation(stream_id, flags, payload, length)
        if kind == FRAME_PRIORITY:
            return self.frame_priority(stream_id, length)
        if kind == FRAME_PUSH_PROMISE:
            return self.connection_error(PROTOCOL_ERROR, "PUSH_PROMISE is not allowed here")                      # §8.4
        if kind == FRAME_GOAWAY:
            return self.frame_goaway(stream_id, payload, length)
        self.take(&self.idle_frames, "too many frames of unknown types")                                    # §5.5: ignored
        return 0

    # ── frames of streams ──

    cdef int frame_data(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        cdef Http2Stream stream
        cdef uint32_t size = length
        if stream_id == 0:
            return self.connection_error(PROTOCOL_ERROR, "DATA belongs to a stream")                        # §6.1
        if flags & FLAG_PADDED:
            if length == 0 or payload[0] >= length:
                return self.connection_error(PROTOCOL_ERROR, "padding is longer than its frame")
            size = length - 1 - payload[0]
            payload += 1
        self.receive_window -= length
        if self.receive_window < 0:
            return self.connection_error(FLOW_CONTROL_ERROR, "more was sent than the connection's window allows")   # §6.9.1
        stream = self.find(stream_id)
        self.receive_consumed += length
        if self.receive_consumed >= self.limits.connection_window_bytes // 2:
            self.receive_window += self.receive_consumed
            self.put_window_update(0, self.receive_consumed)
            self.receive_consumed = 0
        if stream is None:
            return self.data_of_closed(stream_id)
        if stream.half_closed:
            return self.reset_stream(stream, STREAM_CLOSED, "DATA after the end of the stream")               # §5.1
        stream.receive_window -= length
        if stream.receive_window < 0:
            return self.reset_stream(stream, FLOW_CONTROL_ERROR, "more was sent than the stream's window allows")
        if stream.body_left >= 0:
            if stream.body_left < size:
                return self.reset_stream(stream, PROTOCOL_ERROR, "more was sent than content-length says")  # §8.1.1
            stream.body_left -= size
        stream.receive_consumed += length
        if size:
            stream.received_data(payload, size)
        elif not flags & FLAG_END_STREAM and self.take(&self.idle_frames, "too many empty DATA frames"):
            return 0
        if stream.closed:
            return 0
        if flags & FLAG_END_STREAM:
            return self.end_of_body(stream)
        return self.give_window(stream)

    cdef int data_of_closed(self, uint32_t stream_id) except -1:
        return 0

    cdef int end_of_body(self, Http2Stream stream) except -1:
        if stream.body_left > 0:
            return self.reset_stream(stream, PROTOCOL_ERROR, "less was sent than content-length says")      # §8.1.1
        stream.half_closed = True
        return stream.received_end()

    cdef int frame_headers(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        cdef uint32_t padding = 0
        cdef bint ends = flags & FLAG_END_STREAM != 0
        if stream_id == 0 or not stream_id & 1:
            return self.connection_error(PROTOCOL_ERROR, "HEADERS of a stream that a client cannot open")   # §5.1.1, §6.2
        if flags & FLAG_PADDED:
            if length == 0:
                return self.connection_error(FRAME_SIZE_ERROR, "HEADERS without the padding it announces")
            padding = payload[0]
            payload += 1
            length -= 1
        if flags & FLAG_PRIORITY:
            if length < 5:
                return self.connection_error(FRAME_SIZE_ERROR, "HEADERS without the priority it announces")
            payload += 5
            length -= 5
        if padding > length:
            return self.connection_error(PROTOCOL_ERROR, "padding is longer than its frame")
        length -= padding
        self.until_clock = 0                    # decoding one takes as long as many frames of DATA
        if flags & FLAG_END_HEADERS:
            return self.header_block(stream_id, ends, payload, length)
        self.block = OutputBuffer()
        self.block.charge_to(self.memory)
        self.block_stream = stream_id
        self.block_ends_stream = ends
        self.block_frames = 0
        if self.block.put(payload, length):
            raise MemoryError("no memory for a header block")
        return 0

    cdef int frame_continuation(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        cdef OutputBuffer block = self.block
        if block is None:
            return self.connection_error(PROTOCOL_ERROR, "CONTINUATION of nothing")                         # §6.10
        self.block_frames += 1
        if block.size() + length > self.limits.header_block_bytes_max or self.block_frames > self.limits.continuations_max:
            return self.connection_error(ENHANCE_YOUR_CALM, "a header block does not end")
        if block.put(payload, length):
            raise MemoryError("no memory for a header block")
        if not flags & FLAG_END_HEADERS:
            return 0
        self.block = None
        return self.header_block(stream_id, self.block_ends_stream, block.data + block.start, block.size())

    cdef int header_block(self, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1:
        return 0

    cdef int frame_rst_stream(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1:
        cdef Http2Stream stream
        if length != 4:
            return self.connection_error(FRAME_SIZE_ERROR, "RST_STREAM has four bytes")                     # §6.4
        if stream_id == 0 or stream_id > self.last_stream_id or not stream_id & 1:
            return self.connection_error(PROTOCOL_ERROR, "RST_STREAM of a stream that was never opened")
        stream = self.find(stream_id)
        if stream is None:
            self.take(&self.idle_frames, "too many resets of closed streams")
            return 0
        return self.stream_was_reset(stream, load_be32(payload))

    cdef int stream_was_reset(self, Http2Stream stream, uint32_t code) except -1:
        return self.close_stream(stream)

    cdef int frame_priority(self, uint32_t stream_id, uint32_t length) except -1:
        cdef Http2Stream stream
        if stream_id == 0:
            return self.connection_error(PROTOCOL_ERROR, "PRIORITY belongs to a stream")                    # §6.3
        if length != 5:
            stream = self.find(stream_id)
            if stream is None:
                return self.connection_error(FRAME_SIZE_ERROR, "PRIORITY has five bytes")
            return self.reset_stream(stream, FRAME_SIZE_ERROR, "PRIORITY has five bytes")
        self.take(&self.idle_frames, "too many PRIORITY frames")
        return 0

    # ── flow control ──

    cdef int give_window(self, Http2Stream stream) except -1:
        # In steps of half a window; never while the window is withheld or the peer has ended the stream.
        cdef uint32_t consumed = stream.receive_consumed
        if stream.withheld or stream.half_closed or stream.closed or consumed < (self.limits.stream_window_bytes + 1) // 2:
            return 0
        stream.receive_window += consumed
        stream.receive_consumed = 0
        return self.put_window_update(stream.id, consumed)

    cdef int reset_stream(self, Http2Stream stream, uint32_t code, str why) except -1:
        self.remember_reset(stream.id)
        self.put_rst(stream.id, code)
        return self.close_stream(stream)

    cdef int frame_window_update(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1:
        cdef Http2Stream stream
        cdef int64_t increment
        if length != 4:
            return self.connection_error(FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")                  # §6.9
        increment = load_be32(payload) & STREAM_ID_MASK
        if stream_id == 0:
            if increment == 0:
                return self.connection_error(PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.send_window += increment
            if self.send_window > WINDOW_LARGEST:
                return self.connection_error(FLOW_CONTROL_ERROR, "the connection's window is too large")    # §6.9.1
            return 0 if self.queue_first is None else self.notify()
        if stream_id > self.last_stream_id or not stream_id & 1:
            return self.connection_error(PROTOCOL_ERROR, "WINDOW_UPDATE of a stream that was never opened")
        stream = self.find(stream_id)
        if stream is None:
            return 0                                                                                        # §5.1 closed: in flight
        if increment == 0:
            return self.reset_stream(stream, PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream.send_window += increment
        if stream.send_window > WINDOW_LARGEST:
            return self.reset_stream(stream, FLOW_CONTROL_ERROR, "the stream's window is too large")
        if stream.send_window > 0:
            self.enqueue(stream)
            return self.notify()
        return 0

    # ── frames of the connection ──

    cdef int frame_settings(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        cdef uint32_t at
        cdef int64_t window = self.peer_stream_window
        if stream_id:
            return self.connection_error(PROTOCOL_ERROR, "SETTINGS belongs to the connection")              # §6.5
        if flags & FLAG_ACK:
            if length:
                return self.connection_error(FRAME_SIZE_ERROR, "an acknowledgement has no settings")
            self.settings_acknowledged = True
            return 0
        if length % 6:
            return self.connection_error(FRAME_SIZE_ERROR, "a setting has six bytes")
        if self.take(&self.settings_frames, "too many SETTINGS frames"):
            return 0
        for at in range(0, length, 6):
            self.apply_setting((<uint32_t> payload[at] << 8) | payload[at + 1], load_be32(payload + at + 2), &window)
            if self.closing:
                return 0
        # Of many values in one frame the last counts, so that a frame costs at most one pass over the streams.
        if window != self.peer_stream_window:
            if self.take(&self.settings_frames, "too many changes of the windows of many streams", len(self.streams) / <double> STREAMS_PER_SETTINGS):
                return 0
            self.move_windows(window - self.peer_stream_window)
            if self.closing:
                return 0
        self.settings_seen = True
        return self.put_control(FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0)

    cdef int apply_setting(self, uint32_t name, uint32_t value, int64_t* window) except -1:
        if name == SETTING_ENABLE_PUSH:
            if value > 1:
                return self.connection_error(PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is 0 or 1")              # §6.5.2
        elif name == SETTING_INITIAL_WINDOW_SIZE:
            if value > WINDOW_LARGEST:
                return self.connection_error(FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
            window[0] = value
        elif name == SETTING_MAX_FRAME_SIZE:
            if not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_LARGEST:
                return self.connection_error(PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
            self.peer_frame_bytes_max = value
        return 0

    cdef int move_windows(self, int64_t difference) except -1:
        # §6.9.2: of all streams at once; a window may become negative.
        cdef Http2Stream stream
        self.peer_stream_window += difference
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > WINDOW_LARGEST:
                return self.connection_error(FLOW_CONTROL_ERROR, "a stream's window is too large")
            if stream.send_window > 0 and stream.send_window <= difference:
                self.enqueue(stream)            # its window was closed; the others are in the queue if they have something to send
        return 0 if self.queue_first is None else self.notify()

    cdef int frame_goaway(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1:
        if stream_id:
            return self.connection_error(PROTOCOL_ERROR, "GOAWAY belongs to the connection")                # §6.8
        if length < 8:
            return self.connection_error(FRAME_SIZE_ERROR, "GOAWAY has at least eight bytes")
        self.peer_leaving = True
        return 0

    cdef int frame_ping(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        if stream_id:
            return self.connection_error(PROTOCOL_ERROR, "PING belongs to the connection")                  # §6.7
        if length != 8:
            return self.connection_error(FRAME_SIZE_ERROR, "PING has eight bytes")
        if flags & FLAG_ACK:
            self.pings_answered += 1
            return 0
        if self.calls_answered:
            # Clients send a PING for received data to measure the connection: one per answer is no flood.
            self.pings.left = self.pings.most
            self.calls_answered = False
        if self.take(&self.pings, "too_many_pings"):
            return 0
        return self.put_control(FRAME_PING, FLAG_ACK, 0, payload, 8)
