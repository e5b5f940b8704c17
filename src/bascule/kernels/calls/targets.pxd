# The partitions of the cluster, as publishers know them: found by the name of the stream and the number, for each message.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.envelope.messages cimport AckView, PublishView


cdef class Target:
    # The NATS subject of one partition. Immutable: a change replaces it.
    cdef readonly bytes stream
    cdef readonly int32_t partition
    cdef readonly bytes subject
    cdef readonly bint paused
    cdef readonly bint is_readonly
    cdef readonly bint concurrency_control
    cdef readonly bytes receiver    # server that a broker seals messages for; None: anyone publishes to this stream
    cdef bint is_plain              # none of these conditions holds
    cdef uint64_t hash              # of stream and subject, which an ack repeats


cdef class Targets:
    # All partitions of the cluster.
    cdef dict streams               # name -> list of Targets by partition
    cdef Target last                # target of the last message
    cdef list recent                # targets of the last messages, by slot_of()
    cdef void forget_recent(self)
    cdef Target find(self, const uint8_t* stream, uint32_t size, int32_t partition)

cdef class Awaited:
    # The one ack that a call waits for: of this partition, None for any, and with this correlation id.
    cdef Target target
    cdef bytes correlation_id
    cdef bint fits(self, AckView* ack) noexcept


cdef Awaited awaited_ack(PublishView* view, Target target)
