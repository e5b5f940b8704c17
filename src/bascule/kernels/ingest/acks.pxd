# Acks for other kernels: their receivers in this process, and their way to NATS.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.envelope.messages cimport AckView
from bascule.kernels.ingest.sink cimport PreparedBatch
from bascule.kernels.nats.protocol cimport MessageSink, NatsMessage, NatsReader


cdef class AckReceiver:
    # A part of this process that waits for acks: a PublishAsync session, unary publishes. Its inbox is the local prefix and a number.
    cdef int on_ack(self, AckView* ack) except -1       # the view lives until it returns


cdef class AckRouter:
    # From the inbox of an ack to its receiver. Inboxes of unknown numbers belong to sessions that are gone.
    cdef readonly bytes prefix                          # e.g. b"liftbridge-default.ack.SERVER."
    cdef readonly dict receivers                        # number → AckReceiver; a receiver adds and removes itself
    cdef readonly uint64_t delivered
    cdef readonly uint64_t unknown
    cdef public object on_fault                         # called with what a receiver raised; the other acks go on
    cdef uint64_t last_number                           # acks come in runs for one session: its key is kept as an object
    cdef object last_key
    cdef bint is_local(self, const uint8_t* inbox, size_t size) noexcept
    cdef int route(self, AckView* ack, const uint8_t* inbox, size_t size) except -1


cdef class AckBundle:
    # Acks for one broker, which leave together.
    cdef bytes subject
    cdef uint8_t* data                                  # u32 size · Ack, again and again
    cdef size_t size
    cdef size_t capacity
    cdef uint64_t count


# Entries of a batch: stored ones, those with an error that is true whatever the log has, and those with one that follows from the log.
cdef enum:
    WITHOUT_ERROR = 0
    CERTAIN = 1
    JUDGED = 2


cdef class AckWriter:
    # Answers the ack entries of batches: over NATS, or straight to a receiver of this process.
    cdef readonly NatsReader reader                     # its output, whether it is connected, how large a payload may be
    cdef readonly AckRouter router
    cdef readonly bytes family                          # how the inboxes of all brokers begin; empty: none of them is known
    cdef public object seal                             # (subject, payload) -> the bytes before the payload of a bundle; or None
    cdef dict bundles                                   # subject -> AckBundle
    cdef list filled                                    # those that have acks
    cdef AckBundle last_bundle
    cdef readonly uint64_t sent                         # written as PUB, alone or in a bundle
    cdef readonly uint64_t unsendable                   # not connected, larger than the server takes, or no memory
    cdef int send(self, AckView* ack) except -1
    cdef int bundle(self, AckView* ack) except -1
    cdef int send_bundles(self) except -1
    cdef int send_bundle(self, AckBundle bundle) except -1
    cdef int send_errors(
        self, PreparedBatch batch, int32_t error, int which, int64_t reception_timestamp, int64_t commit_timestamp
    ) except -1


# Bundles of acks of partitions that other servers lead. They are kept while the read is scanned and handed on at its end, with the GIL.
cdef class AckSink(MessageSink):
    cdef readonly AckRouter router
    cdef public object open                             # (subject, message) -> its acks, None if no broker sent it; or None
    cdef readonly uint64_t invalid                      # messages that are no bundle of acks
    cdef uint8_t* kept                                  # u32 subject size · u32 payload size · subject · payload, again and again
    cdef size_t kept_size
    cdef size_t kept_capacity
    cdef int route_all(self, const uint8_t* at, size_t size) except -1
    cdef bint route_bundle(self, const uint8_t* at, size_t size) except -1
