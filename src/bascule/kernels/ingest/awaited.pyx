# The acks that a publishing session waits for: 64-bit hashes of stream, subject and correlation id.
#
# A partition acks in the order in which it got the messages, so each partition has a queue of hashes, and the next ack is nearly always
# the first of its queue. What an ack overtook moves to a counted set, and is looked up there. Equal hashes are common: clients that use
# no correlation ids send the same one for every message. Memory is bounded: beyond `keys_max` hashes, acks are only counted, and any
# ack that is not found is taken for one of those.

import os

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

cdef enum:
    FIRST_SLOTS = 64
    FIRST_KEYS = 16                 # room in a new queue
    IDLE_KEYS_MAX = 1 << 12         # an empty queue with more room gives it back

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


# ── a counted set of hashes ──────────────────────────────────────────────────────────────────────
#
# An open hash table with linear probing; a freed slot is closed by shifting those after it.


cdef class HashCounts:
    def __dealloc__(self):
        free(self.slots)

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
            self.used += 1
            self.slots[index].key = key
        self.slots[index].count += 1
        return True

    cdef bint take(self, uint64_t key) noexcept:
        # Whether the set holds the key; it holds one less from now on.
        cdef size_t index
        if not self.used:
            return False
        index = self.find(key)
        if self.slots[index].count == 0:
            return False
        self.slots[index].count -= 1
        if self.slots[index].count == 0:
            self.free_slot(index)
        return True

    cdef int grow(self) except -1:
        cdef Slot* old = self.slots
        cdef size_t capacity = self.capacity
        cdef size_t index
        cdef Slot* fresh = <Slot*> calloc(2 * capacity if capacity else FIRST_SLOTS, sizeof(Slot))
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


# ── the acks of a session ────────────────────────────────────────────────────────────────────────


cdef class AwaitedAcks:
    def __cinit__(self, size_t keys_max=1 << 20):
        self.keys_max = keys_max
        self.overtaken = HashCounts.__new__(HashCounts)

    def __dealloc__(self):
        cdef size_t index
        for index in range(self.capacity):
            free(self.queues[index].keys)
        free(self.queues)

    def __len__(self):
        # Acks that are awaited and known by their hash.
        return self.tracked

    cdef Queue* queue_of(self, uint64_t partition) noexcept:
        # The queue of the partition, or the free one where it belongs. Only add_queues() frees queues.
        cdef size_t mask = self.capacity - 1
        cdef size_t index = partition & mask
        while self.queues[index].is_used and self.queues[index].partition != partition:
            index = (index + 1) & mask
        return &self.queues[index]

    cdef bint add(self, uint64_t partition, uint64_t key) except False:
        cdef Queue* queue
        if self.tracked >= self.keys_max:
            self.untracked += 1
            return True
        if 2 * (self.used + 1) > self.capacity:
            self.add_queues()
        queue = self.queue_of(partition)
        if not queue.is_used:
            queue.is_used = True
            queue.partition = partition
            self.used += 1
        if queue.count == queue.room:
            grow_queue(queue)
        queue.keys[(queue.first + queue.count) & (queue.room - 1)] = key
        queue.count += 1
        self.tracked += 1
        return True

    cdef bint take(self, uint64_t partition, uint64_t key) except -1:
        # Whether this ack is awaited; it is awaited once less from now on.
        cdef Queue* queue
        cdef uint32_t count
        if self.capacity:
            queue = self.queue_of(partition)
            if queue.count and queue.keys[queue.first] == key:
                drop_first(queue, 1)
                self.tracked -= 1
                return True
            if self.overtaken.take(key):
                self.tracked -= 1
                return True
            for count in range(1, queue.count):
                if queue.keys[(queue.first + count) & (queue.room - 1)] == key:
                    self.overtake(queue, count)
                    self.tracked -= 1
                    return True
        if self.untracked:
            self.untracked -= 1
            return True
        return False

    cdef int overtake(self, Queue* queue, uint32_t count) except -1:
        # Drop a key of the queue; the `count` keys before it can still be acked.
        cdef uint32_t index
        for index in range(count):
            self.overtaken.add(queue.keys[(queue.first + index) & (queue.room - 1)])
        drop_first(queue, count + 1)
        return 0

    cdef int add_queues(self) except -1:
        # Make room for more queues, at the expense of those that are empty.
        cdef Queue* old = self.queues
        cdef size_t capacity = self.capacity
        cdef size_t index
        cdef size_t busy = 0
        cdef Queue* fresh
        for index in range(capacity):
            busy += old[index].count > 0
        self.capacity = max(<size_t> FIRST_SLOTS, 2 * capacity if 4 * busy > capacity else capacity)
        fresh = <Queue*> calloc(self.capacity, sizeof(Queue))
        if fresh == NULL:
            self.capacity = capacity
            raise MemoryError("no memory for acks")
        self.queues = fresh
        self.used = busy
        for index in range(capacity):
            if old[index].count:
                self.queue_of(old[index].partition)[0] = old[index]
            else:
                free(old[index].keys)
        free(old)
        return 0

    # for tests

    @property
    def queues_kept(self):
        return self.used

    def expect(self, uint64_t partition, uint64_t key):
        self.add(partition, key)

    def received(self, uint64_t partition, uint64_t key):
        return self.take(partition, key)


cdef inline void drop_first(Queue* queue, uint32_t count) noexcept:
    queue.count -= count
    queue.first = (queue.first + count) & (queue.room - 1)
    if queue.count == 0 and queue.room > IDLE_KEYS_MAX:
        free(queue.keys)
        queue.keys = NULL
        queue.first = 0
        queue.room = 0


cdef int grow_queue(Queue* queue) except -1:
    cdef uint32_t room = 2 * queue.room if queue.room else FIRST_KEYS
    cdef uint64_t* keys = <uint64_t*> malloc(room * sizeof(uint64_t))
    cdef uint32_t index
    if keys == NULL:
        raise MemoryError("no memory for acks")
    for index in range(queue.count):
        keys[index] = queue.keys[(queue.first + index) & (queue.room - 1)]
    free(queue.keys)
    queue.keys = keys
    queue.first = 0
    queue.room = room
    return 0
