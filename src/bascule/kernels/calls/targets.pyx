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
        self.recent = [None] * RECENT_TARGETS

    def set(self, str stream, int32_t partition, str subject, *, bint paused, bint readonly, bint concurrency_control):
        cdef Target target = Target.__new__(Target)
        cdef list partitions
        target.stream = stream.encode()
        target.partition = partition
        target.subject = subject.encode()
        target.paused = paused
        target.is_readonly = readonly
        target.concurrency_control = concurrency_control
        target.hash = hash_ack(
            <const uint8_t*> PyBytes_AS_STRING(target.stream), PyBytes_GET_SIZE(target.stream),
            <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject),
        )
        partitions = self.streams.setdefault(target.stream, [])
        while len(partitions) <= partition:
            partitions.append(None)
        partitions[partition] = target
        self.recent = [None] * RECENT_TARGETS

    def remove(self, str stream):
        self.streams.pop(stream.encode(), None)
        self.recent = [None] * RECENT_TARGETS

    def __len__(self):
        return len(self.streams)

    cdef Target find(self, const uint8_t* stream, uint32_t size, int32_t partition):
        cdef size_t slot = slot_of(stream, size, partition)
        cdef Target found = <Target> PyList_GET_ITEM(self.recent, slot)
        cdef list partitions
        if (
            found is not None and found.partition == partition and <uint32_t> PyBytes_GET_SIZE(found.stream) == size
            and memcmp(PyBytes_AS_STRING(found.stream), stream, size) == 0
        ):
            return found
        partitions = <list> self.streams.get(PyBytes_FromStringAndSize(<const char*> stream, size))
        if partitions is None or partition < 0 or partition >= len(partitions):
            return None
        found = <Target> partitions[partition]
        if found is not None:
            self.recent[slot] = found
        return found


cdef inline size_t slot_of(const uint8_t* stream, uint32_t size, int32_t partition) noexcept nogil:
    # Names of many streams often differ only at their end. A collision costs a lookup in the dictionary.
    cdef uint64_t end = 0
    cdef uint32_t count = size if size < 8 else 8
    memcpy(&end, stream + (size - count), count)
    return <size_t> (((end ^ <uint32_t> partition) * <uint64_t> 0x9E3779B97F4A7C15) >> 56)
