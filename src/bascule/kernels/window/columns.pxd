# A column of numbers or bytes: memory that grows while a kernel fills it, and is read through the buffer protocol afterwards.

from libc.stdint cimport int64_t, uint8_t


cdef class Column:
    cdef uint8_t* data              # not NULL, unless Python made it
    cdef size_t size                # bytes in use
    cdef size_t capacity
    cdef Py_ssize_t item_size
    cdef const char* format
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    # Make room for `more` bytes after `size`. Not while a buffer of the column is exported. 0, or −1 without memory.
    cdef int reserve(self, size_t more) noexcept nogil
    cdef void shrink(self) noexcept nogil                       # free unused memory, if it is much
    cdef int add_number(self, int64_t number) noexcept nogil    # for columns of int64


cdef Column new_column(char kind, size_t capacity)              # kind of items as module struct names them: B, i, q
