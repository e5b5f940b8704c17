# The acks that a publishing session waits for: 64-bit hashes. See awaited.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Slot:
    uint64_t key
    uint32_t count                  # 0: the slot is free


cdef struct Queue:
    uint64_t partition              # its hash
    uint64_t* keys                  # a ring
    uint32_t first
    uint32_t count
    uint32_t room                   # of the ring: a power of two, or 0
    bint is_used


cdef class HashCounts:
    cdef Slot* slots
    cdef size_t capacity            # a power of two, or 0
    cdef size_t used                # slots that are not free
    cdef bint add(self, uint64_t key) except False
    cdef bint take(self, uint64_t key) noexcept
    cdef size_t find(self, uint64_t key) noexcept
    cdef int grow(self) except -1
    cdef void free_slot(self, size_t index) noexcept


cdef class AwaitedAcks:
    cdef Queue* queues              # an open hash table
    cdef size_t capacity            # a power of two, or 0
    cdef size_t used                # queues that are not free
    cdef HashCounts overtaken       # what later acks of the same partition came before
    cdef size_t keys_max
    cdef size_t tracked             # hashes in queues and in `overtaken`
    cdef readonly uint64_t untracked    # acks that are awaited beyond keys_max, whichever they are
    cdef bint add(self, uint64_t partition, uint64_t key) except False
    cdef bint take(self, uint64_t partition, uint64_t key) except -1
    cdef Queue* queue_of(self, uint64_t partition) noexcept
    cdef int overtake(self, Queue* queue, uint32_t count) except -1
    cdef int add_queues(self) except -1


# Hashes of texts, seeded for this process: a client cannot choose texts that share slots.
cdef uint64_t hash_text(const uint8_t* text, size_t size, uint64_t seed) noexcept nogil
cdef uint64_t hash_ack(
    const uint8_t* stream, size_t stream_size, const uint8_t* subject, size_t subject_size
) noexcept nogil
