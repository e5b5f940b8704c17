# Publishing through the API: requests become PUB lines, acks become responses, without a Python object per message.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.calls.targets cimport Awaited, Target, Targets
from bascule.kernels.envelope.messages cimport AckView, PublishView
from bascule.kernels.grpc.server cimport GrpcStream
from bascule.kernels.ingest.acks cimport AckReceiver
from bascule.kernels.ingest.awaited cimport AwaitedAcks
from bascule.kernels.nats.protocol cimport NatsReader

# The outcome of a request. publish.pyx has the texts and codes for clients, by these numbers.
cdef enum Verdict:
    GOOD = 0
    MALFORMED
    NO_STREAM
    NO_PARTITION
    READONLY
    NEEDS_POLICY
    PAUSED
    DISCONNECTED
    TOO_LARGE
    DENIED
    OVERLOADED
    BROKERS_ONLY

cdef tuple answer_to(int verdict)   # status, code of a PublishAsyncError, text


cdef class PublishGate:
    # State that all publish calls of a broker share.
    cdef readonly Targets targets
    cdef readonly NatsReader nats
    cdef readonly dict receivers    # number -> AckReceiver: the last token of our ack inboxes
    cdef bytes inbox_prefix
    cdef uint64_t last_receiver
    cdef size_t payload_bytes_max
    cdef size_t output_bytes_max
    cdef size_t unread_bytes_max
    cdef object shell               # Python callbacks: flush, resume, deadlines, authorization
    cdef public bint checks_authorization
    cdef readonly uint64_t published        # messages handed to NATS so far
    cdef list held_back             # streams that wait until the output to NATS has room
    cdef bytes register(self, AckReceiver receiver)
    cdef int forget(self, AckReceiver receiver) except -1
    cdef Target judge(self, PublishView* view, int* verdict)
    cdef int judge_state(self, Target target, PublishView* view) noexcept
    cdef int publish(
        self, const uint8_t* subject, size_t subject_size, PublishView* view, const uint8_t* inbox, uint32_t inbox_size
    ) except -1


cdef class Receiver(AckReceiver):
    cdef uint64_t number
    cdef bytes inbox
    cdef int lost(self) except -1   # the connection to NATS is lost: no ack will come


cdef class SessionReceiver(Receiver):
    cdef PublishAsyncStream stream


cdef class CallReceiver(Receiver):
    cdef PublishStream call


cdef class PublishAsyncStream(GrpcStream):
    cdef PublishGate gate
    cdef readonly dict granted      # stream that the client may publish to -> the client, if the gate checks authorization
    cdef SessionReceiver receiver
    cdef uint64_t outstanding       # published, not acked yet
    cdef AwaitedAcks awaited        # the same, by stream, subject and correlation id
    cdef list held                  # messages after one whose partition is being resumed
    cdef bint held_back             # the client gets no window: it does not read acks, or the output to NATS is full
    cdef bint is_over(self) noexcept
    cdef int take(self, const uint8_t* data, size_t size) except -1
    cdef int refuse(self, int verdict, PublishView* view) except -1
    cdef int refuse_with(
        self, int32_t code, bytes text, const uint8_t* correlation_id, uint32_t correlation_id_size
    ) except -1
    cdef int deny(self, PublishView* view) except -1
    cdef int hold(self, const uint8_t* data, size_t size) except -1
    cdef int acked(self, AckView* ack) except -1
    cdef int watch_unread(self) except -1
    cdef int finish_if_done(self) except -1


cdef class PublishStream(GrpcStream):
    # Publish and PublishToSubject: one request, one answer.
    cdef PublishGate gate
    cdef bint to_subject
    cdef CallReceiver receiver
    cdef Awaited awaited
    cdef bytes request
    cdef bytes client_inbox
    cdef object timer
    cdef bint is_over(self) noexcept
    cdef int start(self) except -1
    cdef int send(self, PublishView* view, const uint8_t* subject, size_t subject_size, Target target) except -1
    cdef int refuse(self, int verdict) except -1
    cdef int acked(self, AckView* ack) except -1
    cdef int pass_on(self, AckView* ack) except -1
    cdef int respond(self, AckView* ack) except -1
    cdef int let_go(self) except -1
