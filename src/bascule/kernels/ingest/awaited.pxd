# The acks that a publishing session waits for: a counted set of 64-bit hashes. See awaited.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Slot:
    uint64_t key
    uint32_t count                  # 0: the slot is free


cdef class AwaitedAcks:
    cdef Slot* slots
    cdef size_t capacity            # a power of two, or 0
    cdef size_t used                # slots that are not free
    cdef size_t keys_max
    cdef readonly uint64_t untracked    # acks that are awaited beyond keys_max, whichever they are
    cdef bint add(self, uint64_t key) except False
    cdef bint take(self, uint64_t key) noexcept
    cdef size_t find(self, uint64_t key) noexcept
    cdef int grow(self) except -1
    cdef void free_slot(self, size_t index) noexcept


# Hashes of texts, seeded for this process: a client cannot choose texts that share slots.
cdef uint64_t hash_text(const uint8_t* text, size_t size, uint64_t seed) noexcept nogil
cdef uint64_t hash_ack(
    const uint8_t* stream, size_t stream_size, const uint8_t* subject, size_t subject_size
) noexcept nogil
