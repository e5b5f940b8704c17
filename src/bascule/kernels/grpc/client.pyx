# gRPC calls over HTTP/2 as a client. See client.pxd.
#
# A call always ends the same way: finish() sets its status, retire() removes it from the connection and sends RST_STREAM if necessary,
# has_ended() calls the hook. The end of the connection ends each call with `end_status`.
#
# Memory that a server can make us hold is bounded: header blocks, unfinished messages and answers to floods by ConnectionLimits, DATA by
# the windows, which the receiver of the messages may withhold.

from base64 import b64encode
from collections import OrderedDict
from math import ceil

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.grpc.messages cimport (
    STATUS_CANCELLED,
    STATUS_DEADLINE_EXCEEDED,
    STATUS_INTERNAL,
    STATUS_OK,
    STATUS_PERMISSION_DENIED,
    STATUS_RESOURCE_EXHAUSTED,
    STATUS_UNAUTHENTICATED,
    STATUS_UNAVAILABLE,
    STATUS_UNIMPLEMENTED,
    STATUS_UNKNOWN,
    MessageStream,
)
from bascule.kernels.headers.hpack cimport encode_literals
from bascule.kernels.headers.names cimport NAME_OTHER, classify_name
from bascule.kernels.headers.request_head cimport ENCODING_UNKNOWN, valid_value
from bascule.kernels.headers.response_head cimport ResponseHead, decode_response
from bascule.kernels.http2.connection cimport PREFACE, Http2Connection, ReceiveBuffer
from bascule.kernels.http2.frames cimport *
from bascule.kernels.http2.sender cimport NOWHERE, ConnectionLimits, Http2Stream, monotonic
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    HEADS_KEPT_MAX = 64             # header blocks remembered for one connection
    STREAMS_BEFORE_SETTINGS = 100   # the least that RFC 9113 §6.5.2 recommends to servers
    STREAMS_UNLIMITED = 0x7FFFFFFF
    STATUS_LARGEST = 16
    NO_RESET = -1
    HEAD_ROOM = 64                  # for grpc-timeout and a table update, in the one frame that a request's headers have
    GOAWAY_TEXT_BYTES_MAX = 256

cdef tuple ERROR_NAMES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
    "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)
cdef dict STATUS_OF_ERROR = {
    REFUSED_STREAM: STATUS_UNAVAILABLE,
    CANCEL: STATUS_CANCELLED,
    ENHANCE_YOUR_CALM: STATUS_RESOURCE_EXHAUSTED,
    INADEQUATE_SECURITY: STATUS_PERMISSION_DENIED,
}
cdef dict STATUS_OF_HTTP = {
    400: STATUS_INTERNAL,
    401: STATUS_UNAUTHENTICATED,
    403: STATUS_PERMISSION_DENIED,
    404: STATUS_UNIMPLEMENTED,
    429: STATUS_UNAVAILABLE,
    502: STATUS_UNAVAILABLE,
    503: STATUS_UNAVAILABLE,
    504: STATUS_UNAVAILABLE,
}


cdef str error_name(uint32_t code):
    return ERROR_NAMES[code] if code < <uint32_t> len(ERROR_NAMES) else f"error {code}"


cdef bytes encode_timeout(double seconds):
    # At most eight digits and a unit; rounded up, because the caller's own clock ends the call in time.
    for unit, per_second in ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0), (b"H", 1 / 3600)):
        if seconds * per_second <= 99_999_999:
            return b"%d%s" % (max(1, ceil(seconds * per_second)), unit)
    return b"99999999H"


cdef tuple encode_field(object name, object value):
    # Return a metadata field as it is sent. Raises ValueError for one that HTTP/2 or gRPC forbids.
    cdef bytes name_bytes = name.encode("ascii") if isinstance(name, str) else bytes(name)
    cdef bytes value_bytes = value.encode("utf-8") if isinstance(value, str) else bytes(value)
    if classify_name(name_bytes, PyBytes_GET_SIZE(name_bytes)) != NAME_OTHER:
        raise ValueError(f"metadata cannot be named {name!r}: names are lower case, and some belong to HTTP/2 and gRPC")
    if name_bytes.endswith(b"-bin"):
        return name_bytes, b64encode(value_bytes).rstrip(b"=")
    if not valid_value(value_bytes, PyBytes_GET_SIZE(value_bytes)):
        raise ValueError(f"metadata {name!r} has a value that no header can have; a name that ends with -bin takes any bytes")
    return name_bytes, value_bytes


cdef class ClientStream(MessageStream):
    def __cinit__(self, *args, **kwargs):
        self.timeout = -1
        self.deadline = -1
        self.status = -1
        self.status_text = ""
        self.path = b""
        self.sealed = True              # until open()

    cdef int on_headers(self) except -1:
        return 0

    cdef int on_messages_done(self) except -1:
        return 0

    cdef int on_finished(self, int status, bytes message) except -1:
        return 0

    # ── for its users ──

    def send(self, message):
        cdef Bytes given = Bytes(message)
        self.send_message(given.data, given.size)

    @property
    def received(self):
        return self.message_count

    @property
    def room_bytes(self):
        return self.room()

    cpdef half_close(self):
        if self.sealed or self.connection is None:
            return
        self.sending_closed = self.sealed = True
        self.tail = b""
        if self.id and self.outgoing.size() == 0:
            self.connection.end_stream(self)
        else:
            self.want_flush()

    cpdef cancel(self):
        self.finish(STATUS_CANCELLED, "the call was cancelled by its caller", self.id == 0, CANCEL)

    # ── the end ──

    cdef int finish(self, int status, str text, bint unprocessed, int64_t reset_code) except -1:
        if self.status >= 0 or self.connection is None:
            return 0
        self.status = status
        self.status_text = text
        self.unprocessed = unprocessed
        return (<ClientConnection> self.connection).retire(self, reset_code)

    cdef int break_off(self, int status, str text) except -1:
        return self.finish(status, text, False, NO_ERROR if self.half_closed else CANCEL)

    cdef int fault(self, object error) except -1:
        if self.connection is None:
            return 0
        self.connection.report(error)
        return self.finish(STATUS_INTERNAL, f"the client failed to handle the answer: {error!r}", False, CANCEL)

    cdef int settle(self) except -1:
        if self.message_count != self.done_count:
            self.done_count = self.message_count
            try:
                self.on_messages_done()
            except Exception as error:
                self.fault(error)
        return 0

    cdef int has_ended(self) except -1:
        cdef ClientConnection connection = <ClientConnection> self.connection
        if self.status < 0:
            self.status = connection.end_status
            self.status_text = connection.end_text
            self.unprocessed = self.id == 0
        self.sealed = True
        self.settle()
        self.finished = True
        self.drop_assembly()
        try:
            self.on_finished(self.status, self.status_text.encode("utf-8", "replace"))
        except Exception as error:
            connection.report(error)
        self.connection = None
        return connection.begin_waiting()

    # ── from below ──

    cdef int received_data(self, const uint8_t* data, size_t size) except -1:
        if not self.headers_seen:
            return self.break_off(STATUS_INTERNAL, "the server broke HTTP/2: DATA before the headers of a response")
        (<ClientConnection> self.connection).touch(self)
        return MessageStream.received_data(self, data, size)

    cdef int received_end(self) except -1:
        if self.assembly is not None:
            return self.break_off(STATUS_INTERNAL, "the response ends within a message")
        return self.break_off(STATUS_INTERNAL, "the response ends without a status")

    cdef int response(self, ResponseHead head, bint ends) except -1:
        # The first header block, or what came before it (RFC 9113 §8.1).
        cdef ClientConnection connection = <ClientConnection> self.connection
        if head.http_status < 0:
            return connection.reset_stream(self, PROTOCOL_ERROR, "a response without :status")
        if head.http_status < 200:
            if ends or head.http_status == 101:
                return connection.reset_stream(self, PROTOCOL_ERROR, f"HTTP status {head.http_status} cannot end or switch anything")
            connection.take(&connection.idle_frames, "too many interim responses")
            return 0
        self.headers_seen = True
        if ends:
            return self.trailing(head)
        if head.http_status != 200 or not head.is_grpc:
            if head.status >= 0:
                return self.trailing(head)
            return self.break_off(
                STATUS_OF_HTTP.get(head.http_status, STATUS_UNKNOWN),
                f"the server answered with HTTP status {head.http_status} and content-type "
                f"{'none' if head.content_type is None else head.content_type.decode('latin-1')}: it may not be a gRPC server",
            )
        if head.encoding == ENCODING_UNKNOWN:
            return self.break_off(STATUS_INTERNAL, "the server compresses in a way that it was not told we know")
        self.encoding = head.encoding
        self.body_left = head.content_length
        self.headers = head.metadata
        try:
            self.on_headers()
        except Exception as error:
            self.fault(error)
        return 0

    cdef int trailing(self, ResponseHead head) except -1:
        # The status; in the only header block of a response, or in trailers.
        cdef int status = head.status
        cdef str text = "" if head.message is None else head.message.decode("utf-8", "replace")
        self.trailers = head.metadata
        if self.assembly is not None and status == STATUS_OK:
            status, text = STATUS_INTERNAL, "the response ends within a message"
        elif status > STATUS_LARGEST:
            status, text = STATUS_UNKNOWN, f"status {status}, which gRPC does not have: {text}"
        elif status < -1:
            status, text = STATUS_UNKNOWN, "the response has a status that is no number"
        elif status < 0 and head.http_status >= 0 and head.http_status != 200:
            status = STATUS_OF_HTTP.get(head.http_status, STATUS_UNKNOWN)
            text = f"the server answered with HTTP status {head.http_status}"
        elif status < 0:
            status, text = STATUS_UNKNOWN, "the response has no status"
        return self.break_off(status, text)


cdef class ClientConnection(Http2Connection):
    def __cinit__(
        self, ConnectionLimits limits not None, ReceiveBuffer receive_buffer=None, *, bytes authority=b"localhost", bytes scheme=b"http",
        bytes agent=b"bascule", uint32_t frame_bytes_max=65536,
    ):
        if not FRAME_BYTES_DEFAULT <= frame_bytes_max <= FRAME_BYTES_LARGEST:
            raise ValueError(f"frames have between 16,384 and 16,777,215 bytes, not {frame_bytes_max}")
        self.is_client = True
        self.authority = authority
        self.scheme = scheme
        self.agent = agent
        self.heads = {}
        self.waiting = OrderedDict()
        self.next_stream_id = 1
        self.goaway_last_id = STREAM_ID_MASK
        self.goaway_text = ""
        self.earliest_deadline = -1
        self.peer_streams_max = min(<uint32_t> STREAMS_BEFORE_SETTINGS, limits.streams_max)
        self.end_status = STATUS_UNAVAILABLE
        self.end_text = "the connection was lost"
        self.frame_bytes_max = frame_bytes_max
        if self.output.put(<const uint8_t*> PREFACE, PREFACE_SIZE):
            raise MemoryError("no memory for a connection")
        self.put_settings((
            (SETTING_ENABLE_PUSH, 0),
            (SETTING_INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (SETTING_MAX_FRAME_SIZE, frame_bytes_max),
            (SETTING_MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max),
        ))

    # ── for the shell ──

    @property
    def open_calls(self):
        return len(self.streams) + len(self.waiting)

    @property
    def waiting_calls(self):
        return len(self.waiting)

    def ping(self):
        cdef uint8_t[8] payload
        if not self.closing:
            self.pings_sent += 1
            store_be32(payload, <uint32_t> (self.pings_sent >> 32))
            store_be32(payload + 4, <uint32_t> self.pings_sent)
            self.put_control(FRAME_PING, 0, 0, payload, 8)

    def expire(self, double now):
        cdef ClientStream stream
        self.earliest_deadline = -1
        for stream in [*self.streams.values(), *self.waiting]:
            if stream.deadline < 0:
                continue
            if stream.deadline <= now:
                stream.finish(STATUS_DEADLINE_EXCEEDED, f"no answer within {stream.timeout:g} s", stream.id == 0, CANCEL)
            elif self.earliest_deadline < 0 or stream.deadline < self.earliest_deadline:
                self.earliest_deadline = stream.deadline
        return self.earliest_deadline

    def lost(self, str reason=""):
        if not self.closing:
            self.end_text = "the connection was lost"
            if self.peer_leaving and (self.goaway_code != NO_ERROR or self.goaway_text):
                self.end_text = f"the server closed the connection ({error_name(self.goaway_code)}) {self.goaway_text}".rstrip()
            elif self.peer_leaving:
                self.end_text = "the server is going away"
            if reason:
                self.end_text += f": {reason}"
        Http2Connection.lost(self)

    def close(self, str text="the connection was closed by its owner"):
        if not self.closing:
            self.end_status = STATUS_CANCELLED
            self.end_text = text
        Http2Connection.connection_error(self, NO_ERROR, "")

    cdef int connection_error(self, uint32_t code, str text) except -1:
        if not self.closing:
            self.end_text = f"the server broke HTTP/2: {text}" if self.settings_seen else f"what answers is no HTTP/2 server: {text}"
        return Http2Connection.connection_error(self, code, text)

    # ── making calls ──

    cpdef open(self, ClientStream stream, bytes path, object metadata=(), double timeout=-1):
        cdef bytes head = self.encode_head(path, metadata)
        if stream.connection is not None or stream.status >= 0:
            raise ValueError("a call is made once")
        stream.connection = self
        stream.path = path
        if timeout >= 0:
            head += encode_literals(((b"grpc-timeout", encode_timeout(timeout)),))
            stream.timeout = timeout
            stream.deadline = monotonic() + timeout
            if self.earliest_deadline < 0 or stream.deadline < self.earliest_deadline:
                self.earliest_deadline = stream.deadline
        stream.request_head = head
        if self.closing or self.draining:
            stream.finish(STATUS_UNAVAILABLE, self.end_text if self.closing else "the server is going away", True, NO_RESET)
            return
        stream.sealed = False
        stream.outgoing = self.take_buffer()
        stream.send_window = self.peer_stream_window
        if self.waiting or <uint32_t> len(self.streams) >= self.peer_streams_max:
            self.waiting[stream] = None
        else:
            self.begin(stream)

    cdef bytes encode_head(self, bytes path, object metadata):
        cdef tuple key = (path, tuple(map(tuple, metadata)))
        cdef bytes head = self.heads.get(key)
        if head is not None:
            return head
        if not path.startswith(b"/") or not valid_value(path, PyBytes_GET_SIZE(path)):
            raise ValueError(f"the path of a call is /service/method, not {path!r}")
        head = encode_literals((
            (b":method", b"POST"), (b":scheme", self.scheme), (b":path", path), (b":authority", self.authority), (b"te", b"trailers"),
            (b"content-type", b"application/grpc"), (b"user-agent", self.agent), (b"grpc-accept-encoding", b"identity,deflate,gzip"),
            *[encode_field(name, value) for name, value in key[1]],
        ))
        if PyBytes_GET_SIZE(head) > FRAME_BYTES_DEFAULT - HEAD_ROOM:
            raise ValueError(f"path and metadata of a call have {len(head)} bytes; at most {FRAME_BYTES_DEFAULT - HEAD_ROOM} can be sent")
        if len(self.heads) >= HEADS_KEPT_MAX:
            self.heads.clear()
        self.heads[key] = head
        return head

    cdef int begin(self, ClientStream stream) except -1:
        cdef bytes head = stream.request_head
        if self.next_stream_id > STREAM_ID_MASK:
            self.draining = True                # §5.1.1: ids are used up; calls in progress go on
            stream.finish(STATUS_UNAVAILABLE, "the connection has made all the calls it can", True, NO_RESET)
            return self.refuse_new(STREAM_ID_MASK)
        stream.request_head = None
        self.register(stream, self.next_stream_id)
        self.last_stream_id = stream.id
        self.next_stream_id += 2
        stream.head_sent = True
        self.send_header_block(stream.id, head, False)
        return self.enqueue(stream)

    cdef int begin_waiting(self) except -1:
        while self.waiting and not self.closing and not self.draining and <uint32_t> len(self.streams) < self.peer_streams_max:
            self.begin(self.waiting.popitem(last=False)[0])
        return 0

    cdef int enqueue(self, Http2Stream stream) except -1:
        return 0 if stream.id == 0 else Http2Connection.enqueue(self, stream)

    cdef int end_stream(self, Http2Stream stream) except -1:
        if not stream.end_sent:
            stream.end_sent = True
            self.calls_answered = True
            self.put_control(FRAME_DATA, FLAG_END_STREAM, stream.id, NULL, 0)
        return 0

    cdef int retire(self, ClientStream stream, int64_t reset_code) except -1:
        cdef OutputBuffer outgoing = stream.outgoing
        if stream.id:
            if reset_code >= 0 and not self.closing and not (stream.half_closed and stream.end_sent):
                self.remember_reset(stream.id)
                self.put_rst(stream.id, <uint32_t> reset_code)
            return self.close_stream(stream)
        self.waiting.pop(stream, None)
        stream.closed = True
        if outgoing is not NOWHERE:
            stream.outgoing = NOWHERE
            self.return_buffer(outgoing)
        return stream.has_ended()

    cdef int close_all(self) except -1:
        Http2Connection.close_all(self)
        while self.waiting:
            self.retire(self.waiting.popitem(last=False)[0], NO_RESET)
        return 0

    # ── what the server sends ──

    cdef int consume(self, const uint8_t* data, size_t size) except -1:
        Http2Connection.consume(self, data, size)
        return self.hand_over_done()

    cdef int touch(self, ClientStream stream) except -1:
        if not stream.done_queued:
            stream.done_queued = True
            stream.done_next = self.done_first
            self.done_first = stream
        return 0

    cdef int hand_over_done(self) except -1:
        cdef ClientStream stream
        while self.done_first is not None:
            stream = self.done_first
            self.done_first = stream.done_next
            stream.done_next = None
            stream.done_queued = False
            stream.settle()
        return 0

    cdef int header_block(self, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1:
        cdef ResponseHead head = decode_response(self.decoder, block, size)
        cdef ClientStream stream = <ClientStream> self.find(stream_id)
        if head is None:
            return self.connection_error(COMPRESSION_ERROR, "a header block cannot be decoded")             # §4.3
        if stream is None:
            if stream_id > self.last_stream_id:
                return self.connection_error(PROTOCOL_ERROR, "HEADERS of a stream that was never opened")   # §5.1 idle
            if not self.was_reset_by_us(stream_id):
                self.take(&self.idle_frames, "too many frames of closed streams")
            return 0
        if head.too_large:
            return stream.break_off(
                STATUS_RESOURCE_EXHAUSTED, f"the headers of the response are larger than {self.limits.header_list_bytes_max} bytes"
            )
        if head.malformed:
            return self.reset_stream(stream, PROTOCOL_ERROR, "malformed headers of a response")             # §8.1.1
        if stream.headers_seen and (not ends or head.http_status >= 0):
            return self.reset_stream(stream, PROTOCOL_ERROR, "headers in the middle of a response")         # §8.1
        if ends:
            if stream.body_left > 0:
                return self.reset_stream(stream, PROTOCOL_ERROR, "less was sent than content-length says")
            stream.half_closed = True
        return stream.trailing(head) if stream.headers_seen else stream.response(head, ends)

    cdef int data_of_closed(self, uint32_t stream_id) except -1:
        if stream_id > self.last_stream_id or not stream_id & 1:
            return self.connection_error(PROTOCOL_ERROR, "DATA of a stream that was never opened")          # §5.1 idle
        if not self.was_reset_by_us(stream_id):
            self.take(&self.idle_frames, "too many frames of closed streams")
        return 0

    cdef int stream_was_reset(self, Http2Stream stream, uint32_t code) except -1:
        return (<ClientStream> stream).finish(
            STATUS_OF_ERROR.get(code, STATUS_INTERNAL), f"the server has reset the call ({error_name(code)})", code == REFUSED_STREAM, NO_RESET
        )

    cdef int reset_stream(self, Http2Stream stream, uint32_t code, str why) except -1:
        return (<ClientStream> stream).finish(STATUS_INTERNAL, f"the server broke HTTP/2: {why}", False, code)

    cdef int frame_settings(self, uint32_t stream_id, uint8_t flags, const uint8_t* payload, uint32_t length) except -1:
        if not self.settings_seen:
            self.peer_streams_max = min(<uint32_t> STREAMS_UNLIMITED, self.limits.streams_max)
        Http2Connection.frame_settings(self, stream_id, flags, payload, length)
        return self.begin_waiting()

    cdef int apply_setting(self, uint32_t name, uint32_t value, int64_t* window) except -1:
        if name == SETTING_MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = min(value, self.limits.streams_max)
        elif name == SETTING_ENABLE_PUSH and value == 1:
            return self.connection_error(PROTOCOL_ERROR, "a server may not set SETTINGS_ENABLE_PUSH to 1")                # §6.5.2
        return Http2Connection.apply_setting(self, name, value, window)

    cdef int frame_goaway(self, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1:
        cdef uint32_t text_bytes
        Http2Connection.frame_goaway(self, stream_id, payload, length)
        if self.closing or self.take(&self.idle_frames, "too many GOAWAY frames"):
            return 0
        text_bytes = min(length - 8, <uint32_t> GOAWAY_TEXT_BYTES_MAX)
        self.draining = True
        self.goaway_code = load_be32(payload + 4)
        self.goaway_text = PyBytes_FromStringAndSize(<const char*> payload + 8, text_bytes).decode("utf-8", "replace")
        self.goaway_last_id = min(self.goaway_last_id, load_be32(payload) & STREAM_ID_MASK)
        return self.refuse_new(self.goaway_last_id)

    cdef int refuse_new(self, uint32_t last_id) except -1:
        # §6.8: the server did not process streams with a higher id; these calls may be retried elsewhere.
        cdef ClientStream stream
        cdef str text = f"the server is going away ({error_name(self.goaway_code)}) {self.goaway_text}".rstrip()
        for stream in [*self.streams.values(), *self.waiting]:
            if stream.id == 0 or stream.id > last_id:
                stream.finish(STATUS_UNAVAILABLE, text, True, NO_RESET)
        return 0


cdef class UnaryCall(ClientStream):
    def __cinit__(self, handler, *args, **kwargs):
        self.handler = handler

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        if self.reply is not None:
            return self.break_off(STATUS_INTERNAL, "a call of one message was answered with two")
        self.reply = PyBytes_FromStringAndSize(<const char*> data, size)
        return 0

    cdef int on_finished(self, int status, bytes message) except -1:
        handler = self.handler
        self.handler = None
        if status != STATUS_OK:
            self.reply = None
        elif self.reply is None:
            self.status = STATUS_INTERNAL
            self.status_text = "a call of one message was answered with none"
        handler(self)
        return 0
