# The partitions of the cluster, as publishers know them. See targets.pxd.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from bascule.kernels.ingest.awaited cimport hash_ack

cdef enum:
    RECENT_TARGETS = 256            # the slots of slot_of()


cdef class Target:
    pass


cdef class Targets:
    def __cinit__(self):
        self.streams = {}
        self.forget_recent()

    def set(
        self, str stream, int32_t partition, str subject, *, bint paused, bint readonly, bint concurrency_control, str receiver=None,
    ):
        cdef Target target = Target.__new__(Target)
        cdef list partitions
        target.stream = stream.encode()
        target.partition = partition
        target.subject = subject.encode()
        target.paused = paused
        target.is_readonly = readonly
        target.concurrency_control = concurrency_control
        target.receiver = None if receiver is None else receiver.encode()
        target.is_plain = not (paused or readonly or concurrency_control or receiver is not None)
        target.hash = hash_ack(
            <const uint8_t*> PyBytes_AS_STRING(target.stream), PyBytes_GET_SIZE(target.stream),
            <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject),
        )
        partitions = self.streams.setdefault(target.stream, [])
        while len(partitions) <= partition:
            partitions.append(None)
        partitions[partition] = target
        self.forget_recent()

    def remove(self, str stream):
        self.streams.pop(stream.encode(), None)
        self.forget_recent()

    cdef void forget_recent(self):
        self.recent = [None] * RECENT_TARGETS
        self.last = None

    def __len__(self):
        return len(self.streams)

    cdef Target find(self, const uint8_t* stream, uint32_t size, int32_t partition):
        cdef Target found = self.last
        cdef size_t slot
        cdef list partitions
        if found is not None and found.partition == partition and is_text(stream, size, found.stream):
            return found
        slot = slot_of(stream, size, partition)
        found = <Target> PyList_GET_ITEM(self.recent, slot)
        if found is not None and found.partition == partition and is_text(stream, size, found.stream):
            self.last = found
            return found
        partitions = <list> self.streams.get(PyBytes_FromStringAndSize(<const char*> stream, size))
        if partitions is None or partition < 0 or partition >= len(partitions):
            return None
        found = <Target> partitions[partition]
        if found is not None:
            self.recent[slot] = self.last = found
        return found


cdef inline size_t slot_of(const uint8_t* stream, uint32_t size, int32_t partition) noexcept nogil:
    # Names of many streams often differ only at their end. A collision costs a lookup in the dictionary.
    cdef uint64_t end = 0
    cdef uint32_t count = size if size < 8 else 8
    memcpy(&end, stream + (size - count), count)
    return <size_t> (((end ^ <uint32_t> partition) * <uint64_t> 0x9E3779B97F4A7C15) >> 56)


# ── the ack of one message ───────────────────────────────────────────────────────────────────────


cdef inline bint is_text(const uint8_t* found, size_t size, bytes wanted) noexcept:
    return <size_t> PyBytes_GET_SIZE(wanted) == size and (size == 0 or memcmp(PyBytes_AS_STRING(wanted), found, size) == 0)


cdef inline bint is_for(AckView* ack, Target target) noexcept:
    # A partition is known by its stream and by the subject that it listens on, which the leader received the message on.
    return is_text(ack.stream, ack.stream_size, target.stream) and is_text(ack.msg_subject, ack.msg_subject_size, target.subject)


cdef class Awaited:
    cdef bint fits(self, AckView* ack) noexcept:
        if self.target is not None and not is_for(ack, self.target):
            return False
        return is_text(ack.correlation_id, ack.correlation_id_size, self.correlation_id)


cdef Awaited awaited_ack(PublishView* view, Target target):
    cdef Awaited awaited = Awaited.__new__(Awaited)
    awaited.target = target
    awaited.correlation_id = PyBytes_FromStringAndSize(<const char*> view.correlation_id, view.correlation_id_size)
    return awaited
