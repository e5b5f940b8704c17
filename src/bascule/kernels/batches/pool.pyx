# Memory for batches that are being collected: it is used again and again, so that a message costs no allocation.

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from bascule.kernels.batches.collected cimport BUFFER_FIRST, complete, free_memory, memory_of
from bascule.kernels.envelope.messages cimport HEADER_ENTRIES_MAX
from bascule.kernels.records.builder cimport BatchBuilder

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

cdef enum:
    SPARE_BUILDERS_MAX = 64


cdef class BatchPool:
    def __cinit__(self, new_builder, size_t bytes_max):
        self.new_builder = new_builder
        self.bytes_max = bytes_max
        self.builders = []
        self.headers = <HeaderView*> malloc(HEADER_ENTRIES_MAX * sizeof(HeaderView))
        if self.headers == NULL:
            raise MemoryError("no memory for the headers of a message")

    def __dealloc__(self):
        cdef size_t index
        for index in range(self.spare_count):
            free_memory(&self.spare[index])
        free(self.spare)
        free(self.headers)
        free(self.encoded)

    cdef bint take(self, Collected* collected) noexcept nogil:
        # Memory for a batch, the one that was used last if there is any.
        if self.spare_count:
            self.spare_count -= 1
            collected[0] = self.spare[self.spare_count]
            self.bytes_kept -= memory_of(collected)
        else:
            memset(collected, 0, sizeof(Collected))
        if collected.buffer == NULL:
            collected.buffer = <uint8_t*> malloc(BUFFER_FIRST)
            collected.capacity = BUFFER_FIRST if collected.buffer != NULL else 0
        if collected.buffer != NULL:
            return True
        free_memory(collected)
        return False

    cdef void give_back(self, Collected* collected) noexcept nogil:
        cdef size_t memory = memory_of(collected)
        cdef size_t capacity
        cdef Collected* grown
        if memory == 0 or memory > self.bytes_max - self.bytes_kept:
            free_memory(collected)
            return
        if self.spare_count and complete(&self.spare[self.spare_count - 1], collected):
            self.bytes_kept += memory
            return
        if self.spare_count == self.spare_capacity:
            capacity = self.spare_capacity * 2 if self.spare_capacity else 16
            grown = <Collected*> realloc(self.spare, capacity * sizeof(Collected))
            if grown == NULL:
                free_memory(collected)
                return
            self.spare = grown
            self.spare_capacity = capacity
        collected.size = collected.texts_size = 0
        collected.records = collected.entry_count = 0
        collected.leader_acks = collected.all_acks = collected.errors = 0
        self.spare[self.spare_count] = collected[0]
        self.spare_count += 1
        self.bytes_kept += memory
        memset(collected, 0, sizeof(Collected))

    cdef uint8_t* room_for_headers(self, size_t size) noexcept nogil:
        cdef size_t capacity = self.encoded_capacity if self.encoded_capacity else BUFFER_FIRST
        cdef uint8_t* grown
        if size > self.encoded_capacity:
            while capacity < size:
                capacity *= 2
            grown = <uint8_t*> realloc(self.encoded, capacity)
            if grown == NULL:
                return NULL
            self.encoded = grown
            self.encoded_capacity = capacity
        return self.encoded

    cdef BatchBuilder idle_builder(self):
        # A builder without memory: the caller gives it a buffer before it adds a record.
        cdef BatchBuilder builder
        if self.builders:
            return <BatchBuilder> self.builders.pop()
        builder = <BatchBuilder?> self.new_builder()
        free(builder.buffer)
        builder.buffer = NULL
        builder.capacity = 0
        return builder

    cdef BatchBuilder builder_around(self, Collected* collected):
        cdef BatchBuilder builder = self.idle_builder()
        builder.buffer = collected.buffer
        builder.capacity = collected.capacity
        builder.size = collected.size
        builder.records = collected.records
        builder.last_time_delta = 0
        builder.subject_at = collected.subject_at
        builder.subject_size = collected.subject_size
        builder.stamped = False
        builder.attributes = collected.attributes
        collected.buffer = NULL
        collected.capacity = 0
        return builder

    cdef void builder_back(self, BatchBuilder builder, Collected* collected):
        # The caller has the last reference. If there is another one, the builder keeps its memory and does not return to the pool.
        if builder.views or Py_REFCNT(builder) > 1:
            return
        collected.buffer = builder.buffer
        collected.capacity = builder.capacity
        builder.buffer = NULL
        builder.capacity = 0
        builder.stamped = False
        if len(self.builders) < SPARE_BUILDERS_MAX:
            self.builders.append(builder)
