# The acks that a publishing session waits for: a counted set of 64-bit hashes of stream, subject and correlation id.
#
# An open hash table with linear probing; a freed slot is closed by shifting those after it. Messages with equal hashes are counted:
# clients that use no correlation ids send the same one for every message. Memory is bounded: beyond `keys_max` different hashes, acks
# are only counted, and any ack that is not in the table is taken for one of those.

import os

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    FIRST_SLOTS = 64

cdef uint64_t MIX = 0x9E3779B97F4A7C15ULL
cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")


cdef uint64_t hash_text(const uint8_t* text, size_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t state = seed ^ (size * MIX)
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, text, 8)
        state = (state ^ word) * MIX
        state ^= state >> 29
        text += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, text, size)
        state = (state ^ word) * MIX
        state ^= state >> 29
    state *= 0xBF58476D1CE4E5B9ULL
    return state ^ (state >> 32)


cdef uint64_t hash_ack(
    const uint8_t* stream, size_t stream_size, const uint8_t* subject, size_t subject_size
) noexcept nogil:
    return hash_text(subject, subject_size, hash_text(stream, stream_size, SEED))


cdef class AwaitedAcks:
    def __cinit__(self, size_t keys_max=1 << 20):
        self.keys_max = keys_max

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        # Different hashes that are awaited.
        return self.used

    cdef size_t find(self, uint64_t key) noexcept:
        # The slot of the key, or the free one where it belongs.
        cdef size_t mask = self.capacity - 1
        cdef size_t index = key & mask
        while self.slots[index].count and self.slots[index].key != key:
            index = (index + 1) & mask
        return index

    cdef bint add(self, uint64_t key) except False:
        cdef size_t index
        if 2 * (self.used + 1) > self.capacity:
            self.grow()
        index = self.find(key)
        if self.slots[index].count == 0:
            if self.used >= self.keys_max:
                self.untracked += 1
                return True
            self.used += 1
            self.slots[index].key = key
        self.slots[index].count += 1
        return True

    cdef bint take(self, uint64_t key) noexcept:
        # Whether this ack is awaited; it is awaited once less from now on.
        cdef size_t index
        if self.capacity:
            index = self.find(key)
            if self.slots[index].count:
                self.slots[index].count -= 1
                if self.slots[index].count == 0:
                    self.free_slot(index)
                return True
        if self.untracked:
            self.untracked -= 1
            return True
        return False

    cdef int grow(self) except -1:
        cdef Slot* old = self.slots
        cdef size_t capacity = self.capacity
        cdef size_t index
        cdef Slot* fresh
        if capacity and self.used >= self.keys_max:
            return 0
        fresh = <Slot*> calloc(2 * capacity if capacity else FIRST_SLOTS, sizeof(Slot))
        if fresh == NULL:
            raise MemoryError("no memory for acks")
        self.slots = fresh
        self.capacity = 2 * capacity if capacity else FIRST_SLOTS
        for index in range(capacity):
            if old[index].count:
                self.slots[self.find(old[index].key)] = old[index]
        free(old)
        return 0

    cdef void free_slot(self, size_t index) noexcept:
        # Move back the keys after it that would no longer be found.
        cdef size_t mask = self.capacity - 1
        cdef size_t next_index = index
        cdef size_t home
        self.used -= 1
        while True:
            next_index = (next_index + 1) & mask
            if self.slots[next_index].count == 0:
                break
            home = self.slots[next_index].key & mask
            if ((next_index - home) & mask) >= ((next_index - index) & mask):
                self.slots[index] = self.slots[next_index]
                index = next_index
        self.slots[index].count = 0

    # for tests

    def expect(self, uint64_t key):
        self.add(key)

    def received(self, uint64_t key):
        return self.take(key)
