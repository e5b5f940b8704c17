# Publishing through the API: requests become PUB lines, acks become responses, without a Python object per message.
#
# A request is wrapped into an envelope and published to the partition's NATS subject, where every subscriber sees it. Its ack
# inbox is one of ours, `<prefix><number>`: the partition's leader acks there. If this broker is the leader, the ack goes to the
# AckReceiver directly, without NATS. An ack counts only if its stream, subject and correlation id are those of a message that waits.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.envelope.messages cimport (
    ACK_ALL, ACK_DISK_FULL, ACK_ENCRYPTION, ACK_LEADER, ACK_NOT_STORED, ACK_OK, ACK_OUT_OF_SEQUENCE, AckView, PublishView, ack_envelope_size,
    publish_envelope_size, publish_error_size, publish_response_size, read_publish_request, read_publish_to_subject,
    write_ack_envelope, write_publish_envelope, write_publish_error, write_publish_response,
)
from bascule.kernels.calls.targets cimport Awaited, Target, Targets, awaited_ack
from bascule.kernels.grpc.server cimport GrpcStream
from bascule.kernels.ingest.acks cimport AckReceiver
from bascule.kernels.ingest.awaited cimport AwaitedAcks, hash_ack, hash_text
from bascule.kernels.nats.protocol cimport NatsReader, begin_pub, end_pub

cdef enum:
    OUTPUT_REFUSED_FACTOR = 6       # times output_bytes_max that may wait for NATS: calls go on sending until their windows are used

# gRPC statuses and the codes of PublishAsyncError.
cdef enum:
    STATUS_OK = 0
    STATUS_UNKNOWN = 2
    STATUS_INVALID_ARGUMENT = 3
    STATUS_DEADLINE_EXCEEDED = 4
    STATUS_NOT_FOUND = 5
    STATUS_PERMISSION_DENIED = 7
    STATUS_RESOURCE_EXHAUSTED = 8
    STATUS_FAILED_PRECONDITION = 9
    STATUS_ABORTED = 10
    STATUS_INTERNAL = 13
    STATUS_UNAVAILABLE = 14

cdef enum:
    ASYNC_UNKNOWN = 0
    ASYNC_BAD_REQUEST = 1
    ASYNC_NOT_FOUND = 2
    ASYNC_INTERNAL = 3
    ASYNC_READONLY = 4
    ASYNC_INCORRECT_OFFSET = 5
    ASYNC_ENCRYPTION_FAILED = 6
    ASYNC_PERMISSION_DENIED = 7
    ASYNC_PRODUCER_FENCED = 1000
    ASYNC_OUT_OF_SEQUENCE = 1001
    ASYNC_DISK_FULL = 1002

# By Verdict: status, code of a PublishAsyncError, text.
cdef tuple ANSWERS = (
    (STATUS_OK, ASYNC_UNKNOWN, b""),
    (STATUS_INTERNAL, ASYNC_BAD_REQUEST, b"the request is no valid protobuf message"),
    (STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST, b"no stream provided"),
    (STATUS_NOT_FOUND, ASYNC_NOT_FOUND, b"no such partition"),
    (STATUS_FAILED_PRECONDITION, ASYNC_READONLY, b"partition is readonly"),
    (STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST, b"stream with concurrency control must have AckPolicy set"),
    (STATUS_INTERNAL, ASYNC_INTERNAL, b"partition is paused and could not be resumed"),
    (STATUS_UNKNOWN, ASYNC_INTERNAL, b"not connected to NATS"),
    (STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST, b"message exceeds max replication size"),
    (STATUS_PERMISSION_DENIED, ASYNC_PERMISSION_DENIED, b"permission denied"),
    (STATUS_RESOURCE_EXHAUSTED, ASYNC_INTERNAL, b"too many messages wait for NATS; retry in a moment"),
    (
        STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST,
        b"stream is invalid: only brokers publish to internal streams; set a cursor with SetCursor, or publish to another stream",
    ),
)

# By Ack.Error: the same for errors of the partition's leader.
cdef tuple ACK_ANSWERS = (
    (STATUS_OK, ASYNC_UNKNOWN, b""),
    (STATUS_UNKNOWN, ASYNC_UNKNOWN, b"the message could not be stored, or its outcome is unknown"),
    (STATUS_UNKNOWN, ASYNC_INCORRECT_OFFSET, b"incorrect expected offset"),
    (
        STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST,
        b"message exceeds max replication size, or a limit of its parts: 1048576 bytes of key, 4096 headers, 1048576 bytes of headers",
    ),
    (STATUS_INTERNAL, ASYNC_ENCRYPTION_FAILED, b"encryption failed"),
)

# The same from ACK_NOT_STORED on.
cdef tuple OWN_ACK_ANSWERS = (
    (STATUS_UNAVAILABLE, ASYNC_INTERNAL, b"the partition's leader changes just now: the message was not stored, publish it again"),
    (STATUS_INVALID_ARGUMENT, ASYNC_BAD_REQUEST, b"the producer headers are malformed"),
    (STATUS_FAILED_PRECONDITION, ASYNC_PRODUCER_FENCED, b"a newer epoch of this producer has published"),
    (STATUS_ABORTED, ASYNC_OUT_OF_SEQUENCE, b"a message before this one is missing"),
)

cdef enum:
    GRANTS_MAX = 1024               # decisions that a session keeps; beyond them it asks for each message


cdef tuple answer_to(int verdict):
    return ANSWERS[verdict]


cdef tuple answer_to_ack(AckView* ack, shell):
    cdef int32_t error = ack.error
    if error == ACK_DISK_FULL:
        return STATUS_RESOURCE_EXHAUSTED, ASYNC_DISK_FULL, shell.full_disk(
            ack.stream[:ack.stream_size], ack.msg_subject[:ack.msg_subject_size]
        )
    if ACK_NOT_STORED <= error <= ACK_OUT_OF_SEQUENCE:
        return OWN_ACK_ANSWERS[error - ACK_NOT_STORED]
    return ACK_ANSWERS[error if 0 <= error <= ACK_ENCRYPTION else 1]


cdef inline bint wants_ack(int32_t policy) noexcept:
    return policy == ACK_LEADER or policy == ACK_ALL


cdef class PublishGate:
    def __cinit__(
        self, *, Targets targets not None, NatsReader nats not None, dict receivers not None, bytes inbox_prefix not None, shell,
        size_t payload_bytes_max, size_t output_bytes_max, size_t unread_bytes_max,
    ):
        self.targets = targets
        self.nats = nats
        self.receivers = receivers
        self.inbox_prefix = inbox_prefix
        self.shell = shell
        self.payload_bytes_max = payload_bytes_max
        self.output_bytes_max = output_bytes_max
        self.unread_bytes_max = unread_bytes_max
        self.held_back = []

    cdef bytes register(self, AckReceiver receiver):
        cdef Receiver known = <Receiver?> receiver
        self.last_receiver += 1
        known.number = self.last_receiver
        known.inbox = b"%s%d" % (self.inbox_prefix, known.number)
        self.receivers[known.number] = known
        return known.inbox

    cdef int forget(self, AckReceiver receiver) except -1:
        self.receivers.pop((<Receiver?> receiver).number, None)
        return 0

    cdef Target judge(self, PublishView* view, int* verdict):
        # Check everything that can be checked before the message is sent, and find its target.
        cdef Target target = None
        if view.stream_size == 0:
            verdict[0] = NO_STREAM
            return None
        target = self.targets.find(view.stream, view.stream_size, view.partition)
        if target is None:
            verdict[0] = NO_PARTITION
        elif target.is_plain:
            verdict[0] = GOOD
        elif target.receiver is not None:
            verdict[0] = BROKERS_ONLY
        else:
            verdict[0] = self.judge_state(target, view)
        return target

    cdef int judge_state(self, Target target, PublishView* view) noexcept:
        if target.is_readonly:
            return READONLY
        if target.concurrency_control and not wants_ack(view.ack_policy):
            return NEEDS_POLICY
        return PAUSED if target.paused else GOOD

    cdef int publish(
        self, const uint8_t* subject, size_t subject_size, PublishView* view, const uint8_t* inbox, uint32_t inbox_size
    ) except -1:
        cdef size_t size = publish_envelope_size(view, inbox_size)
        cdef size_t waiting
        cdef uint8_t* at
        cdef bint first
        if not self.nats.connected:
            return DISCONNECTED
        # A stream would refuse it. A subject may have other subscribers: there only the limit of NATS counts, which closes the
        # connection of a client that exceeds it.
        if (view.stream_size and size > self.payload_bytes_max) or (self.nats.max_payload and size > self.nats.max_payload):
            return TOO_LARGE
        waiting = self.nats.output.size()
        if waiting > OUTPUT_REFUSED_FACTOR * self.output_bytes_max:
            return OVERLOADED
        first = waiting == 0
        at = begin_pub(self.nats.output, subject, subject_size, size)
        if at == NULL:
            raise MemoryError("no memory for what is to be published")
        write_publish_envelope(at, view, inbox, inbox_size)
        end_pub(self.nats.output, size)
        self.published += 1
        if first:
            self.shell.schedule_flush()
        return GOOD

    def connection_lost(self):
        # Messages without ack may or may not be stored: unary calls that wait for an ack end now, with that answer.
        for receiver in list(self.receivers.values()):
            (<Receiver> receiver).lost()
        self.drained()

    @property
    def sessions(self):
        return [
            (<SessionReceiver> receiver).stream for receiver in self.receivers.values()
            if isinstance(receiver, SessionReceiver) and (<SessionReceiver> receiver).stream is not None
        ]

    @property
    def unanswered(self):
        # Messages of clients and of the server itself that wait for their acks. Computed on demand, for a server that stops.
        cdef Receiver receiver
        cdef PublishAsyncStream stream
        cdef uint64_t found = 0
        for receiver in self.receivers.values():
            if not isinstance(receiver, SessionReceiver):
                found += 1
                continue
            stream = (<SessionReceiver> receiver).stream
            if stream is not None:
                found += stream.outstanding + (0 if stream.held is None else <uint64_t> len(stream.held))
        return found

    def drained(self):
        # The output to NATS has room again: streams that were held back continue.
        cdef list streams = self.held_back
        cdef PublishAsyncStream stream
        self.held_back = []
        for stream in streams:
            stream.let_through()


# ── PublishAsync ─────────────────────────────────────────────────────────────────────────────────


cdef class Receiver(AckReceiver):
    cdef int lost(self) except -1:
        return 0


# An ack may end its call and drop the last reference to both, so on_ack() holds one.

cdef class SessionReceiver(Receiver):
    cdef int on_ack(self, AckView* ack) except -1:
        cdef PublishAsyncStream stream = self.stream
        if stream is not None:
            stream.acked(ack)
        return 0


cdef class PublishAsyncStream(GrpcStream):
    def __init__(self, PublishGate gate not None):
        self.gate = gate
        self.granted = {}

    cdef bint is_over(self) noexcept:
        return self.finished or self.closed

    cdef int on_open(self) except -1:
        self.lasting = True
        self.awaited = AwaitedAcks.__new__(AwaitedAcks)
        self.receiver = SessionReceiver.__new__(SessionReceiver)
        self.receiver.stream = self
        self.gate.register(self.receiver)
        # clients wait for the response headers before they send
        self.send_headers()
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        if self.held is not None:
            return self.hold(data, size)
        return self.take(data, size)

    cdef int take(self, const uint8_t* data, size_t size) except -1:
        cdef PublishView view
        cdef Target target
        cdef SessionReceiver receiver = self.receiver
        cdef int verdict = GOOD
        cdef bint acked
        if self.is_over() or receiver is None:
            return 0
        if not read_publish_request(data, size, &view):
            self.finish(STATUS_INTERNAL, "a request is no valid protobuf message")
            return 0
        target = self.gate.judge(&view, &verdict)
        if self.gate.checks_authorization and verdict != NO_STREAM and self.deny(&view):
            return 0
        if verdict == PAUSED:
            self.held = []
            self.hold(data, size)
            self.gate.shell.resume(self, target.stream.decode(), target.partition)
            return 0
        acked = wants_ack(view.ack_policy)
        if verdict == GOOD:
            verdict = self.gate.publish(
                <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject), &view,
                <const uint8_t*> PyBytes_AS_STRING(receiver.inbox), <uint32_t> PyBytes_GET_SIZE(receiver.inbox) if acked else 0,
            )
        if verdict != GOOD:
            return self.refuse(verdict, &view)
        if acked:
            self.outstanding += 1
            self.awaited.add(target.hash, hash_text(view.correlation_id, view.correlation_id_size, target.hash))
        if self.gate.nats.output.size() > self.gate.output_bytes_max and not self.held_back:
            self.hold_back()
            self.gate.held_back.append(self)
            self.gate.shell.watch_output()
        return 0

    cdef int refuse(self, int verdict, PublishView* view) except -1:
        cdef tuple answer = <tuple> ANSWERS[verdict]
        return self.refuse_with(answer[1], answer[2], view.correlation_id, view.correlation_id_size)

    cdef int refuse_with(
        self, int32_t code, bytes text, const uint8_t* correlation_id, uint32_t correlation_id_size
    ) except -1:
        cdef uint32_t text_size = <uint32_t> PyBytes_GET_SIZE(text)
        cdef size_t size = publish_error_size(code, text_size, correlation_id_size)
        cdef uint8_t* at = self.begin_message(size)
        write_publish_error(
            at, code, <const uint8_t*> PyBytes_AS_STRING(text), text_size, correlation_id, correlation_id_size
        )
        self.end_message(size)
        self.watch_unread()
        return self.want_flush()

    cdef int deny(self, PublishView* view) except -1:
        # Return 1 when the client may not publish to this stream; the refusal is sent.
        cdef bytes name = view.stream[:view.stream_size]
        if name in self.granted:
            return 0
        refusal = self.gate.shell.refusal(self.peer, name.decode("utf-8", "replace"))
        if refusal is None:
            if len(self.granted) < GRANTS_MAX:
                self.granted[name] = self.peer
            return 0
        if refusal[0] == STATUS_PERMISSION_DENIED:
            self.refuse_with(
                ASYNC_PERMISSION_DENIED, refusal[1].encode(), view.correlation_id, view.correlation_id_size
            )
        else:
            self.finish(refusal[0], refusal[1])
        return 1

    # After a message whose partition is paused, all messages wait in order until the partition is resumed.

    cdef int hold(self, const uint8_t* data, size_t size) except -1:
        cdef bytes message = self.keep(data, size)
        if message is None:
            return 0
        self.held.append(message)
        if not self.held_back:
            self.hold_back()
        return 0

    def resumed(self, text):
        # `text` is the reason why the partition could not be resumed, None if it was resumed.
        cdef list held = self.held
        cdef PublishView view
        cdef bytes first
        cdef Py_ssize_t index
        if self.is_over() or held is None:
            return
        self.held = None
        self.drop_kept()
        if text is not None:
            first = held.pop(0)
            if read_publish_request(<const uint8_t*> PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first), &view):
                self.refuse_with(ASYNC_INTERNAL, text.encode(), view.correlation_id, view.correlation_id_size)
        for index in range(len(held)):
            if self.held is not None:
                # this or another partition is paused: the rest waits
                self.held.extend(held[index:])
                return
            first = <bytes> held[index]
            self.take(<const uint8_t*> PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
        self.let_through()
        self.finish_if_done()

    def hold_back(self):
        self.held_back = True
        self.withhold(True)

    def let_through(self):
        if self.held_back and not self.is_over() and self.held is None and self.outgoing.size() <= self.gate.unread_bytes_max:
            self.held_back = False
            self.withhold(False)

    cdef int watch_unread(self) except -1:
        if not self.held_back and self.outgoing.size() > self.gate.unread_bytes_max:
            self.hold_back()
        return 0

    cdef int on_room(self) except -1:
        self.let_through()
        return 0

    cdef int acked(self, AckView* ack) except -1:
        cdef size_t size
        cdef uint8_t* at
        cdef tuple answer
        cdef uint64_t partition = hash_ack(ack.stream, ack.stream_size, ack.msg_subject, ack.msg_subject_size)
        if not self.awaited.take(partition, hash_text(ack.correlation_id, ack.correlation_id_size, partition)):
            return 0
        self.outstanding -= 1
        if self.is_over():
            return 0
        if ack.error != ACK_OK:
            answer = answer_to_ack(ack, self.gate.shell)
            self.refuse_with(answer[1], answer[2], ack.correlation_id, ack.correlation_id_size)
        else:
            size = publish_response_size(ack, True)
            at = self.begin_message(size)
            write_publish_response(at, ack, True)
            self.end_message(size)
            self.watch_unread()
            self.want_flush()
        return self.finish_if_done()

    cdef int on_half_close(self) except -1:
        self.finish_if_done()
        if not self.is_over() and self.receiver is not None:
            self.gate.shell.half_closed(self)
        return 0

    cdef int finish_if_done(self) except -1:
        if self.half_closed and not self.outstanding and self.held is None and not self.is_over():
            self.finish(STATUS_OK)
        return 0

    def give_up(self):
        # the deadline of the missing acks has passed
        if not self.is_over():
            self.finish(STATUS_OK)

    cdef int on_closed(self) except -1:
        if self.receiver is not None:
            self.gate.forget(self.receiver)
            self.receiver.stream = None
            self.receiver = None
        self.held = None
        return 0


# ── Publish and PublishToSubject ─────────────────────────────────────────────────────────────────


cdef class CallReceiver(Receiver):
    cdef int on_ack(self, AckView* ack) except -1:
        cdef PublishStream call = self.call
        if call is not None:
            call.acked(ack)
        return 0

    cdef int lost(self) except -1:
        cdef PublishStream call = self.call
        if call is not None:
            call.lost()
        return 0


cdef class PublishStream(GrpcStream):
    def __init__(self, PublishGate gate not None, bint to_subject=False):
        self.gate = gate
        self.to_subject = to_subject

    cdef bint is_over(self) noexcept:
        return self.finished or self.closed

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        if self.request is None:
            self.request = self.keep(data, size)
        return 0

    cdef int on_half_close(self) except -1:
        if self.request is None:
            self.finish(STATUS_INTERNAL, "the call has no request")
            return 0
        return self.start()

    cdef int start(self) except -1:
        cdef PublishView view
        cdef Target target
        cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(self.request)
        cdef size_t size = PyBytes_GET_SIZE(self.request)
        cdef bint good = read_publish_to_subject(data, size, &view) if self.to_subject else read_publish_request(data, size, &view)
        cdef int verdict = GOOD
        if not good:
            return self.refuse(MALFORMED)
        if self.to_subject:
            if self.refused_subject(view.subject[:view.subject_size], "subject"):
                return 0
        else:
            target = self.gate.judge(&view, &verdict)
            if verdict != NO_STREAM and self.denied(view.stream[:view.stream_size]):
                return 0
        # The partition's leader publishes the ack to the inbox: the client writes there through the broker.
        if view.ack_inbox_size and self.refused_subject(view.ack_inbox[:view.ack_inbox_size], "ackInbox"):
            return 0
        if self.to_subject:
            view.expected_offset = 0
            return self.send(&view, view.subject, view.subject_size, None)
        if verdict == PAUSED:
            self.gate.shell.resume(self, target.stream.decode(), target.partition)
            return 0
        if verdict != GOOD:
            return self.refuse(verdict)
        return self.send(
            &view, <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject), target
        )

    def denied(self, bytes stream):
        name = stream.decode("utf-8", "replace")
        refusal = self.gate.shell.refusal(self.peer, name) if self.gate.checks_authorization else None
        if refusal is not None:
            self.finish(refusal[0], refusal[1])
        return refusal is not None

    def refused_subject(self, bytes subject, str field):
        refusal = self.gate.shell.subject_refusal(self.peer, subject, field)
        if refusal is not None:
            self.finish(refusal[0], refusal[1])
        return refusal is not None

    def resumed(self, text):
        if text is not None and not self.is_over():
            self.finish(STATUS_INTERNAL, text)
        elif not self.is_over():
            self.start()

    cdef int send(self, PublishView* view, const uint8_t* subject, size_t subject_size, Target target) except -1:
        # With a deadline the call waits for the ack; without one it ends when the message is sent.
        cdef bytes inbox
        cdef int verdict
        if not wants_ack(view.ack_policy) or self.timeout < 0:
            verdict = self.gate.publish(subject, subject_size, view, view.ack_inbox, view.ack_inbox_size)
            if verdict != GOOD:
                return self.refuse(verdict)
            self.send_message(NULL, 0)
            self.finish(STATUS_OK)
            return 0
        self.client_inbox = view.ack_inbox[:view.ack_inbox_size]
        self.receiver = CallReceiver.__new__(CallReceiver)
        self.receiver.call = self
        self.awaited = awaited_ack(view, target)
        inbox = self.gate.register(self.receiver)
        verdict = self.gate.publish(
            subject, subject_size, view, <const uint8_t*> PyBytes_AS_STRING(inbox), <uint32_t> PyBytes_GET_SIZE(inbox)
        )
        if verdict != GOOD:
            return self.refuse(verdict)
        self.timer = self.gate.shell.call_later(self.timeout, self.expire)
        return 0

    cdef int refuse(self, int verdict) except -1:
        cdef tuple answer = <tuple> ANSWERS[verdict]
        self.finish(answer[0], (<bytes> answer[2]).decode())
        return 0

    def expire(self):
        if not self.is_over():
            self.timer = None
            self.finish(STATUS_DEADLINE_EXCEEDED, "no ack before the deadline")

    def lost(self):
        if not self.is_over():
            self.finish(STATUS_UNKNOWN, "the connection to NATS was lost: the message may or may not have been stored")

    cdef int acked(self, AckView* ack) except -1:
        cdef tuple answer
        if self.is_over() or (self.awaited is not None and not self.awaited.fits(ack)):
            return 0
        self.let_go()  # the first ack is the answer, later ones are ignored
        if PyBytes_GET_SIZE(self.client_inbox):
            ack.ack_inbox = <const uint8_t*> PyBytes_AS_STRING(self.client_inbox)
            ack.ack_inbox_size = <uint32_t> PyBytes_GET_SIZE(self.client_inbox)
            if self.gate.nats.connected:
                self.pass_on(ack)
        if ack.error != ACK_OK and not self.to_subject:
            answer = answer_to_ack(ack, self.gate.shell)
            self.finish(answer[0], (<bytes> answer[2]).decode())
            return 0
        return self.respond(ack)

    cdef int pass_on(self, AckView* ack) except -1:
        # The client named its own inbox, which may have other subscribers: publish the ack there too.
        cdef size_t size = ack_envelope_size(ack)
        cdef uint8_t* at = begin_pub(self.gate.nats.output, ack.ack_inbox, ack.ack_inbox_size, size)
        if at == NULL:
            raise MemoryError("no memory for an ack")
        write_ack_envelope(at, ack)
        end_pub(self.gate.nats.output, size)
        self.gate.shell.schedule_flush()
        return 0

    cdef int respond(self, AckView* ack) except -1:
        cdef size_t size = publish_response_size(ack, False)
        cdef uint8_t* at = self.begin_message(size)
        write_publish_response(at, ack, False)
        self.end_message(size)
        self.finish(STATUS_OK)
        return 0

    cdef int let_go(self) except -1:
        if self.receiver is not None:
            self.gate.forget(self.receiver)
            self.receiver.call = None
            self.receiver = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        return 0

    cdef int on_closed(self) except -1:
        return self.let_go()
