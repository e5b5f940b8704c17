# gRPC calls as a server. See server.pxd.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bascule.kernels.grpc.messages cimport (
    NO_MEMORY_LEFT,
    PREFIX_SIZE,
    STATUS_DEADLINE_EXCEEDED,
    STATUS_INTERNAL,
    STATUS_OK,
    STATUS_RESOURCE_EXHAUSTED,
    STATUS_UNIMPLEMENTED,
    MessageStream,
)
from bascule.kernels.headers.hpack cimport encode_literals
from bascule.kernels.headers.request_head cimport ENCODING_UNKNOWN, RequestHead
from bascule.kernels.http2.connection cimport Http2Connection, ReceiveBuffer
from bascule.kernels.http2.frames cimport (
    ENHANCE_YOUR_CALM,
    FRAME_DATA,
    FRAME_HEADER_SIZE,
    NO_ERROR,
    store_be32,
    write_frame_header,
)
from bascule.kernels.http2.sender cimport ConnectionLimits, monotonic
from bascule.kernels.http2.server cimport Http2Server
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.memory.account cimport MemoryAccount

cdef enum:
    HEADS_KEPT_MAX = 64             # header blocks remembered for one connection
    HEADS_BYTES_MAX = 256           # and how long one may be
    MESSAGE_BYTES_MAX = 1024        # of a status text, before it is percent-encoded

cdef bytes RESPONSE_HEAD = encode_literals([(b":status", b"200"), (b"content-type", b"application/grpc")])
cdef bytes TRAILERS_OK = encode_literals([(b"grpc-status", b"0")])
cdef bytes ACCEPTED_ENCODINGS = encode_literals([(b"grpc-accept-encoding", b"identity,deflate,gzip")])
cdef bytes ALLOWED_METHODS = encode_literals([(b"allow", b"POST")])
cdef bytes OVERLOADED = RESPONSE_HEAD + encode_literals([
    (b"grpc-status", b"8"), (b"grpc-message", NO_MEMORY_LEFT.encode("ascii"))
])
cdef frozenset PLAIN = frozenset(bytes(set(range(0x20, 0x7F)) - {0x25}))


cdef bytes percent_encode(str message):
    # Of UTF-8, everything but printable ASCII and the percent sign itself.
    cdef bytes text = message.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore").encode("utf-8")
    if text.isascii() and text.decode("ascii").isprintable() and b"%" not in text:
        return text.strip()
    return b"".join([bytes((byte,)) if byte in PLAIN else b"%%%02X" % byte for byte in text]).strip()


cdef bytes encode_status(int status, str message):
    fields = [(b"grpc-status", str(status).encode("ascii"))]
    if message:
        fields.append((b"grpc-message", percent_encode(message)))
    return encode_literals(fields)


cdef class GrpcStream(MessageStream):
    def __cinit__(self, *args, **kwargs):
        self.timeout = -1
        self.deadline = -1
        self.path = b""

    cdef int on_open(self) except -1:
        return 0

    cdef int on_half_close(self) except -1:
        return 0

    cdef int on_closed(self) except -1:
        return 0

    # ── from below ──

    cdef int received_end(self) except -1:
        if self.finished:
            return 0
        if self.unread is not None:
            self.ended_unread = True
            return 0
        try:
            if self.assembly is not None:
                self.finish(STATUS_INTERNAL, "the request ends within a message")
            else:
                self.on_half_close()
        except Exception as error:
            self.fault(error)
        return 0

    cdef int has_ended(self) except -1:
        cdef GrpcConnection connection = <GrpcConnection> self.connection
        self.finished = self.sealed = True
        self.drop_assembly()
        self.drop_unread()
        self.drop_kept()
        if self.deadline >= 0:
            connection.timed_calls -= 1
        try:
            if self.opened:
                self.on_closed()
        except Exception as error:
            connection.report(error)
        self.connection = None
        return 0

    cdef int break_off(self, int status, str text) except -1:
        self.finish(status, text)
        return 0

    cdef int shed(self) except -1:
        # A response that has not begun says why; one that has begun is reset, which clients read as RESOURCE_EXHAUSTED.
        cdef Http2Connection connection = self.connection
        if self.head_sent:
            connection.remember_reset(self.id)
            connection.put_rst(self.id, ENHANCE_YOUR_CALM)
            return connection.close_stream(self)
        self.finished = self.sealed = self.head_sent = True
        self.outgoing.drop_front(self.outgoing.size())
        self.tail = OVERLOADED
        return connection.end_stream(self)

    cdef int fault(self, object error) except -1:
        cdef Http2Connection connection = self.connection
        if connection is not None:
            connection.report(error)
            self.finish(STATUS_INTERNAL, "internal error")
        return 0

    cdef int open_call(self) except -1:
        self.opened = True
        try:
            self.on_open()
        except Exception as error:
            self.fault(error)
        return 0

    cpdef admit(self, peer):
        cdef list unread = self.unread
        cdef bytes message
        if unread is None or self.finished or self.connection is None:
            return
        self.drop_unread()
        self.peer = peer
        self.withhold(False)
        self.open_call()
        try:
            for message in unread:
                if self.finished:
                    return
                self.on_message(<const uint8_t*> PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message))
        except Exception as error:
            self.fault(error)
        if self.ended_unread:
            self.received_end()
        if self.connection is not None:
            self.connection.notify()

    # ── for subclasses ──

    cpdef send_headers(self):
        if not self.finished and self.connection is not None:
            self.connection.send_head(self)

    cpdef finish(self, int status, str message=""):
        cdef bytes tail
        if self.finished or self.connection is None:
            return
        self.finished = self.sealed = True
        self.drop_assembly()
        self.drop_unread()
        tail = TRAILERS_OK if status == STATUS_OK and not message else encode_status(status, message)
        if self.outgoing.size() == 0 and not self.head_sent:
            tail = RESPONSE_HEAD + tail
            self.head_sent = True
        self.tail = tail
        if self.outgoing.size() == 0:
            self.connection.end_stream(self)
        else:
            self.want_flush()

cdef class GrpcConnection(Http2Server):
    def __cinit__(
        self, ConnectionLimits limits not None, ReceiveBuffer receive_buffer=None, dict routes=None, *, MemoryAccount memory=None
    ):
        self.routes = {} if routes is None else routes
        self.heads = {}
        self.response_head = RESPONSE_HEAD

    @property
    def waiting_calls(self):
        # calls that a server waits for before it stops
        return sum(1 for stream in self.streams.values() if not (<GrpcStream> stream).lasting)

    def end_calls(self, int status, str message):
        cdef GrpcStream stream
        for stream in list(self.streams.values()):
            stream.finish(status, message)

    def expire(self, double now):
        cdef GrpcStream stream
        for stream in list(self.streams.values()):
            if 0 <= stream.deadline <= now:
                stream.finish(STATUS_DEADLINE_EXCEEDED, "the client's deadline has passed")

    cdef RequestHead read_head(self, const uint8_t* block, size_t size):
        # Clients send the same few blocks again and again. One that left the table alone means the same as long as the table does.
        cdef RequestHead head
        cdef uint64_t generation = self.decoder.generation
        cdef bytes key
        if size > HEADS_BYTES_MAX:
            return Http2Server.read_head(self, block, size)
        if generation != self.heads_generation:
            self.heads.clear()
            self.heads_generation = generation
        key = PyBytes_FromStringAndSize(<const char*> block, size)
        head = self.heads.get(key)
        if head is None:
            head = Http2Server.read_head(self, block, size)
            if head is not None and self.decoder.generation == generation:
                if len(self.heads) >= HEADS_KEPT_MAX:
                    self.heads.clear()
                self.heads[key] = head
        return head

    cdef int open_stream(self, uint32_t stream_id, RequestHead head, bint ends) except -1:
        cdef GrpcStream stream
        if head.route is None:
            head.route = self.routes.get(head.path)
        if head.route is None or not self.is_acceptable(head) or (self.memory is not None and self.memory.is_crowded()):
            self.send_header_block(stream_id, self.refusal(head), True)
            if not ends:
                self.remember_reset(stream_id)
                self.put_rst(stream_id, NO_ERROR)
            return 0
        stream = self.make_stream(head.route)
        stream.connection = self
        stream.path = head.path
        stream.metadata = head.metadata
        stream.timeout = head.timeout
        stream.encoding = head.encoding
        stream.body_left = head.content_length
        if head.timeout >= 0:
            stream.deadline = monotonic() + head.timeout
            self.timed_calls += 1
        self.register(stream, stream_id)
        if self.identify is None:
            stream.peer = self.peer
            stream.open_call()
        else:
            self.ask_for_peer(stream)
        if ends and not stream.closed:
            return self.end_of_body(stream)
        return 0

    cdef int ask_for_peer(self, GrpcStream stream) except -1:
        stream.unread = []
        try:
            peer = self.identify(stream)
        except Exception as error:
            stream.fault(error)
            return 0
        if peer is not None:
            stream.admit(peer)
        return 0

    cdef GrpcStream make_stream(self, object route):
        cdef GrpcStream stream = None
        try:
            stream = route()
        except Exception as error:
            self.report(error)
        return FailedStream() if stream is None else stream

    cdef bint is_acceptable(self, RequestHead head) noexcept:
        return (
            head.is_post and head.is_grpc and not head.too_large and not head.bad_metadata and not head.bad_timeout
            and head.encoding != ENCODING_UNKNOWN
        )

    cdef bytes refusal(self, RequestHead head):
        # Refuse a call that has no stream yet, with a response that has trailers only.
        if head.too_large:
            return RESPONSE_HEAD + encode_status(STATUS_RESOURCE_EXHAUSTED, "the request's headers are too large")
        if not head.is_post:
            return (
                encode_literals([(b":status", b"405"), (b"content-type", b"application/grpc")])
                + encode_status(STATUS_INTERNAL, "a call is a POST") + ALLOWED_METHODS
            )
        if not head.is_grpc:
            return (
                encode_literals([(b":status", b"415"), (b"content-type", b"application/grpc")])
                + encode_status(STATUS_INTERNAL, "a call's content-type begins with application/grpc")
            )
        if head.bad_timeout:
            return RESPONSE_HEAD + encode_status(STATUS_INTERNAL, "grpc-timeout is malformed")
        if head.bad_metadata:
            return RESPONSE_HEAD + encode_status(STATUS_INTERNAL, "binary metadata is not base64")
        if head.encoding == ENCODING_UNKNOWN:
            return RESPONSE_HEAD + encode_status(STATUS_UNIMPLEMENTED, "grpc-encoding is none of ours") + ACCEPTED_ENCODINGS
        if head.route is not None:
            return OVERLOADED
        return RESPONSE_HEAD + encode_status(STATUS_UNIMPLEMENTED, f"unknown method {head.path.decode('utf-8', 'replace')}")


cdef class FailedStream(GrpcStream):
    # a call whose route could not make a stream for it

    cdef int on_open(self) except -1:
        self.finish(STATUS_INTERNAL, "internal error")
        return 0


cdef class CallStream(GrpcStream):
    cdef int on_open(self) except -1:
        self.opened()
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        self.connection.until_clock = 0         # Python code is slow
        self.received(PyBytes_FromStringAndSize(<const char*> data, size))
        return 0

    cdef int on_half_close(self) except -1:
        self.client_finished()
        return 0

    cdef int on_room(self) except -1:
        self.writable()
        return 0

    cdef int on_closed(self) except -1:
        self.ended()
        return 0

    def opened(self):
        pass

    def received(self, message):
        pass

    def client_finished(self):
        pass

    def writable(self):
        pass

    def ended(self):
        pass

    def send(self, message):
        cdef Bytes given = Bytes(message)
        self.send_message(given.data, given.size)

    @property
    def room_bytes(self):
        return self.room()


cdef class UnaryStream(GrpcStream):
    def __cinit__(self, handler, *args, **kwargs):
        self.handler = handler

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        if self.request is not None:
            self.finish(STATUS_INTERNAL, "a call of one message has sent a second")
        else:
            self.request = self.keep(data, size)
        return 0

    cdef int on_half_close(self) except -1:
        cdef bytes request = self.request
        if request is None:
            self.finish(STATUS_INTERNAL, "a call of one message has sent none")
            return 0
        self.request = b""
        self.handler(self, request)
        return 0

    cdef int on_closed(self) except -1:
        task = self.task
        self.handler = self.request = self.task = None
        if task is not None:
            task.cancel()
        return 0

    def reply(self, message):
        cdef Bytes given
        if self.finished:
            return
        given = Bytes(message)
        if not self.reply_at_once(given.data, given.size):
            self.send_message(given.data, given.size)
            self.finish(STATUS_OK)

    cdef bint reply_at_once(self, const uint8_t* data, size_t size) except -1:
        # Headers, message and trailers at once, if windows and output have room, as in nearly every call.
        cdef Http2Connection connection = self.connection
        cdef int64_t body = PREFIX_SIZE + <int64_t> size
        cdef uint8_t* at
        if (
            self.outgoing.size()
            or body > self.send_window
            or body > connection.send_window
            or body > connection.peer_frame_bytes_max
            or not connection.has_output_room()
        ):
            return False
        connection.send_head(self)
        at = connection.reserve(FRAME_HEADER_SIZE + body)
        at = write_frame_header(at, <uint32_t> body, FRAME_DATA, 0, self.id)
        at[0] = 0
        store_be32(at + 1, <uint32_t> size)
        memcpy(at + PREFIX_SIZE, data, size)
        connection.output.commit(FRAME_HEADER_SIZE + body)
        self.send_window -= body
        connection.send_window -= body
        self.finished = self.sealed = True
        self.tail = TRAILERS_OK
        connection.end_stream(self)
        return True
