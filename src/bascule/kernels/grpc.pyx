# gRPC over HTTP/2. See grpc.pxd.
#
# A message is a byte (1: compressed), its length as four big-endian bytes, and itself. Prefixes and messages lie in DATA frames as they come:
# many in one, or one in many. A message that lies whole in a frame is handed on where it lies; others are put together first.

import zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bascule.kernels.hpack cimport encode_literals
from bascule.kernels.http2 cimport Http2Connection, ReceiveBuffer, monotonic
from bascule.kernels.http2_frames cimport (
    FRAME_DATA,
    FRAME_HEADER_SIZE,
    NO_ERROR,
    load_be32,
    store_be32,
    write_frame_header,
)
from bascule.kernels.http2_sender cimport NOWHERE, ConnectionLimits, Http2Stream
from bascule.kernels.output cimport OutputBuffer
from bascule.kernels.records cimport Bytes
from bascule.kernels.request_head cimport ENCODING_GZIP, ENCODING_IDENTITY, ENCODING_UNKNOWN, RequestHead

cdef enum:
    PREFIX_SIZE = 5
    HEADS_KEPT_MAX = 64             # header blocks remembered for one connection
    HEADS_BYTES_MAX = 256           # and how long one may be
    MESSAGE_BYTES_MAX = 1024        # of a status text, before it is percent-encoded

# Of the seventeen statuses those that a call can end with before anybody has looked at it.
cdef enum:
    STATUS_OK = 0
    STATUS_DEADLINE_EXCEEDED = 4
    STATUS_RESOURCE_EXHAUSTED = 8
    STATUS_UNIMPLEMENTED = 12
    STATUS_INTERNAL = 13

cdef bytes RESPONSE_HEAD = encode_literals([(b":status", b"200"), (b"content-type", b"application/grpc")])
cdef bytes TRAILERS_OK = encode_literals([(b"grpc-status", b"0")])
cdef bytes ACCEPTED_ENCODINGS = encode_literals([(b"grpc-accept-encoding", b"identity,deflate,gzip")])
cdef bytes ALLOWED_METHODS = encode_literals([(b"allow", b"POST")])
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


cdef class GrpcStream(Http2Stream):
    def __cinit__(self, *args, **kwargs):
        self.timeout = -1
        self.deadline = -1
        self.path = b""

    cdef int on_open(self) except -1:
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        return 0

    cdef int on_half_close(self) except -1:
        return 0

    cdef int on_room(self) except -1:
        return 0

    cdef int on_closed(self) except -1:
        return 0

    # ── from below ──

    cdef int received_data(self, const uint8_t* data, size_t size) except -1:
        cdef size_t taken
        try:
            while size and not self.finished:
                if self.assembly is None and size >= PREFIX_SIZE and load_be32(data + 1) <= size - PREFIX_SIZE:
                    taken = PREFIX_SIZE + load_be32(data + 1)
                    self.hand_on(data, taken)
                else:
                    taken = self.assemble(data, size)
                data += taken
                size -= taken
        except Exception as error:
            self.fault(error)
        return 0

    cdef size_t assemble(self, const uint8_t* data, size_t size) except? 0:
        # The next bytes of a message that does not lie whole in a frame; handed on when they are its last.
        cdef OutputBuffer parts = self.assembly
        cdef GrpcConnection connection = self.connection
        cdef size_t have, wanted, taken
        if parts is None:
            parts = self.assembly = connection.take_buffer()
        have = parts.size()
        wanted = PREFIX_SIZE
        if have >= PREFIX_SIZE:
            wanted += load_be32(parts.data + parts.start + 1)
        taken = min(size, wanted - have)
        if parts.put(data, taken):
            raise MemoryError("no memory for a message")
        connection.assembly_bytes += taken
        have += taken
        if have == PREFIX_SIZE:
            wanted = PREFIX_SIZE + load_be32(parts.data + parts.start + 1)
            if wanted - PREFIX_SIZE > connection.limits.message_bytes_max:
                self.finish(STATUS_RESOURCE_EXHAUSTED, too_large(wanted - PREFIX_SIZE, connection.limits.message_bytes_max))
                return taken
        if have < wanted or have < PREFIX_SIZE:
            if connection.assembly_bytes > connection.limits.assembly_bytes_max:
                self.finish(STATUS_RESOURCE_EXHAUSTED, "too many unfinished messages at the same time")
            return taken
        # The buffer is not the stream's any more: whatever the hook does, its bytes stay.
        self.assembly = None
        connection.assembly_bytes -= have
        self.hand_on(parts.data + parts.start, have)
        connection.return_buffer(parts)
        return taken

    cdef int hand_on(self, const uint8_t* prefix, size_t size) except -1:
        size -= PREFIX_SIZE
        if size > self.connection.limits.message_bytes_max:
            self.finish(STATUS_RESOURCE_EXHAUSTED, too_large(size, self.connection.limits.message_bytes_max))
            return 0
        if prefix[0] == 0:
            return self.on_message(prefix + PREFIX_SIZE, size)
        if prefix[0] > 1:
            self.finish(STATUS_INTERNAL, "a message does not begin with 0 or 1")
            return 0
        if self.encoding == ENCODING_IDENTITY:
            self.finish(STATUS_INTERNAL, "a message is compressed and grpc-encoding does not say how")
            return 0
        return self.hand_on_compressed(prefix + PREFIX_SIZE, size)

    cdef int hand_on_compressed(self, const uint8_t* data, size_t size) except -1:
        cdef size_t most = self.connection.limits.message_bytes_max
        cdef bytes plain
        decompressor = zlib.decompressobj(31 if self.encoding == ENCODING_GZIP else 15)
        try:
            plain = decompressor.decompress(PyBytes_FromStringAndSize(<const char*> data, size), most + 1)
        except zlib.error:
            self.finish(STATUS_INTERNAL, "a message cannot be decompressed")
            return 0
        if <size_t> PyBytes_GET_SIZE(plain) > most:
            self.finish(STATUS_RESOURCE_EXHAUSTED, f"a message is larger than {most} bytes when it is decompressed")
            return 0
        if not decompressor.eof:
            self.finish(STATUS_INTERNAL, "a message cannot be decompressed")
            return 0
        return self.on_message(<const uint8_t*> PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))

    cdef int received_end(self) except -1:
        if self.finished:
            return 0
        try:
            if self.assembly is not None:
                self.finish(STATUS_INTERNAL, "the request ends within a message")
            else:
                self.on_half_close()
        except Exception as error:
            self.fault(error)
        return 0

    cdef int may_send(self) except -1:
        if self.finished:
            return 0
        try:
            self.on_room()
        except Exception as error:
            self.fault(error)
        return 0

    cdef int has_ended(self) except -1:
        cdef GrpcConnection connection = self.connection
        self.finished = True
        self.drop_assembly()
        if self.deadline >= 0:
            connection.timed_calls -= 1
        try:
            self.on_closed()
        except Exception as error:
            connection.report(error)
        self.connection = None
        return 0

    cdef int drop_assembly(self) except -1:
        if self.assembly is not None:
            self.connection.assembly_bytes -= self.assembly.size()
            self.connection.return_buffer(self.assembly)
            self.assembly = None
        return 0

    cdef int fault(self, object error) except -1:
        cdef GrpcConnection connection = self.connection
        if connection is not None:
            connection.report(error)
            self.finish(STATUS_INTERNAL, "internal error")
        return 0

    # ── for subclasses ──

    cdef uint8_t* begin_message(self, size_t size) except NULL:
        cdef OutputBuffer outgoing = NOWHERE if self.finished else self.outgoing
        cdef uint8_t* at
        if size > <size_t> 0xFFFFFFFF:
            raise ValueError("a message has at most 4 GiB")
        at = outgoing.reserve(PREFIX_SIZE + size)
        if at == NULL:
            raise MemoryError("no memory for a message")
        return at + PREFIX_SIZE

    cdef int end_message(self, size_t size) except -1:
        cdef OutputBuffer outgoing = self.outgoing
        cdef uint8_t* at
        if self.finished:
            return 0
        at = outgoing.data + outgoing.end
        at[0] = 0
        store_be32(at + 1, <uint32_t> size)
        outgoing.commit(PREFIX_SIZE + size)
        return 0

    cdef int send_message(self, const uint8_t* data, size_t size) except -1:
        cdef uint8_t* at
        if self.finished:
            return 0
        at = self.begin_message(size)
        if size:
            memcpy(at, data, size)
        self.end_message(size)
        return self.want_flush()

    cdef int want_flush(self) except -1:
        if not self.closed and self.connection is not None:
            self.connection.enqueue(self)
            return self.connection.notify()
        return 0

    cdef size_t room(self) except? 0:
        cdef size_t waiting, share
        if self.finished or self.connection is None:
            return 0
        waiting = self.outgoing.size()
        share = self.connection.outgoing_share()
        if waiting < share and self.send_window > 0 and self.connection.send_window > 0:
            return share - waiting
        self.want_flush()               # on_room() comes by way of the queue
        return 0

    cpdef send_headers(self):
        if not self.finished and self.connection is not None:
            self.connection.send_head(self)

    cpdef finish(self, int status, str message=""):
        cdef bytes tail
        if self.finished or self.connection is None:
            return
        self.finished = True
        self.drop_assembly()
        tail = TRAILERS_OK if status == STATUS_OK and not message else encode_status(status, message)
        if self.outgoing.size() == 0 and not self.head_sent:
            tail = RESPONSE_HEAD + tail
            self.head_sent = True
        self.tail = tail
        if self.outgoing.size() == 0:
            self.connection.end_stream(self)
        else:
            self.want_flush()

    cpdef withhold(self, bint on):
        self.withheld = on
        if not on and self.connection is not None:
            self.connection.give_window(self)


cdef str too_large(size_t size, size_t most):
    return f"a message of {size} bytes is larger than {most} bytes"


cdef class GrpcConnection(Http2Connection):
    def __cinit__(self, ConnectionLimits limits not None, ReceiveBuffer receive_buffer=None, dict routes=None):
        self.routes = {} if routes is None else routes
        self.heads = {}
        self.response_head = RESPONSE_HEAD

    @property
    def waiting_calls(self):
        # those that a server which stops should wait for
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
            return Http2Connection.read_head(self, block, size)
        if generation != self.heads_generation:
            self.heads.clear()
            self.heads_generation = generation
        key = PyBytes_FromStringAndSize(<const char*> block, size)
        head = self.heads.get(key)
        if head is None:
            head = Http2Connection.read_head(self, block, size)
            if head is not None and self.decoder.generation == generation:
                if len(self.heads) >= HEADS_KEPT_MAX:
                    self.heads.clear()
                self.heads[key] = head
        return head

    cdef int open_stream(self, uint32_t stream_id, RequestHead head, bint ends) except -1:
        cdef GrpcStream stream
        if head.route is None:
            head.route = self.routes.get(head.path)
        if head.route is None or not self.is_acceptable(head):
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
        try:
            stream.on_open()
        except Exception as error:
            stream.fault(error)
        if ends and not stream.closed:
            return self.end_of_body(stream)
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
        # What is wrong with a call that nobody will see, as a response that has trailers only.
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
            self.request = PyBytes_FromStringAndSize(<const char*> data, size)
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
        # Headers, message and trailers in one go, when windows and output have room for it: what nearly every call comes to.
        cdef GrpcConnection connection = self.connection
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
        self.finished = True
        self.tail = TRAILERS_OK
        connection.end_stream(self)
        return True
