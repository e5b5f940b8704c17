# Read access to the bytes of any Python object that has a buffer, and the prefetch of memory.

from libc.stdint cimport uint8_t


cdef class Bytes:
    # Holds the object's buffer until it is deallocated; `data` may be NULL when `size` is 0.
    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t* data
    cdef Py_ssize_t size


cdef extern from *:
    # Loads the cache line at an address, which need not be valid, before it is used.
    void prefetch "__builtin_prefetch" (const void* at, int for_writing) noexcept nogil
