# The output buffer for other kernels: written at the end, sent from the front.

from libc.stdint cimport uint8_t

from bascule.kernels.memory.account cimport MemoryAccount


cdef class OutputBuffer:
    cdef uint8_t* data
    cdef size_t start               # readable bytes: data[start:end]
    cdef size_t end
    cdef size_t capacity
    cdef Py_ssize_t views           # exported buffers, during which the data must not move
    cdef MemoryAccount account      # charged with the capacity; None when nothing counts it
    cdef void charge_to(self, MemoryAccount account) noexcept      # another account, or None, from now on
    cdef size_t size(self) noexcept nogil
    cdef uint8_t* reserve(self, size_t more) noexcept nogil     # memory for `more` bytes after the end; NULL if there is none
    cdef void commit(self, size_t written) noexcept nogil       # adds the bytes written there
    cdef int put(self, const uint8_t* source, size_t count) noexcept nogil   # 0, or −1 without memory
    cdef void drop_front(self, size_t count) noexcept nogil
    cdef void shrink(self) noexcept nogil
