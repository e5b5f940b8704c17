# A column of numbers or bytes: plain memory that grows while a kernel fills it and is looked at through the buffer protocol afterwards.

from libc.stdint cimport int64_t, uint8_t


cdef class Column:
    cdef uint8_t* data              # not NULL, unless Python made it
    cdef size_t size                # bytes in use
    cdef size_t capacity
    cdef Py_ssize_t item_size
    cdef const char* format
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    # Room for so many more bytes behind `size`; nobody may be looking at the column. 0, or −1 when there is no memory.
    cdef int reserve(self, size_t more) noexcept nogil
    cdef void shrink(self) noexcept nogil                       # give back what is not used, when it is much
    cdef int add_number(self, int64_t number) noexcept nogil    # for columns of int64


cdef Column new_column(char kind, size_t capacity)              # kind of items as module struct names them: B, i, q
