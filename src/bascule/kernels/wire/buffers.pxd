# Read access to the bytes of any Python object that has a buffer.

from libc.stdint cimport uint8_t


cdef class Bytes:
    # Holds the object's buffer until it is deallocated; `data` may be NULL when `size` is 0.
    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t* data
    cdef Py_ssize_t size
