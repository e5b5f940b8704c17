# A column of numbers or bytes. Growing doubles, so that a column of any size is copied about once.

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef enum:
    CAPACITY_MIN = 64
    UNUSED_MAX = 4096               # bytes that may stay unused in a complete column


cdef class Column:
    def __cinit__(self):
        self.item_size = 1
        self.format = "B"

    def __dealloc__(self):
        free(self.data)

    cdef int reserve(self, size_t more) noexcept nogil:
        cdef size_t wanted = self.size + more
        cdef uint8_t* larger
        if wanted <= self.capacity:
            return 0
        if wanted < more:
            return -1
        if wanted < 2 * self.capacity:
            wanted = 2 * self.capacity
        larger = <uint8_t*> realloc(self.data, wanted)
        if larger == NULL:
            return -1
        self.data = larger
        self.capacity = wanted
        return 0

    cdef void shrink(self) noexcept nogil:
        cdef uint8_t* smaller
        cdef size_t wanted = self.size if self.size > CAPACITY_MIN else <size_t> CAPACITY_MIN
        if self.capacity < wanted + wanted // 4 + <size_t> UNUSED_MAX:
            return
        smaller = <uint8_t*> realloc(self.data, wanted)
        if smaller != NULL:
            self.data = smaller
            self.capacity = wanted

    cdef int add_number(self, int64_t number) noexcept nogil:
        if self.size + 8 > self.capacity and self.reserve(8):
            return -1
        memcpy(self.data + self.size, &number, 8)
        self.size += 8
        return 0

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("a column is only for reading")
        self.shape[0] = <Py_ssize_t> self.size // self.item_size
        self.strides[0] = self.item_size
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = <Py_ssize_t> self.size
        buffer.itemsize = self.item_size
        buffer.readonly = 1
        buffer.ndim = 1
        buffer.format = <char*> self.format if flags & PyBUF_FORMAT else NULL
        buffer.shape = self.shape if flags & PyBUF_ND else NULL
        buffer.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef Column new_column(char kind, size_t capacity):
    cdef Column column = Column.__new__(Column)
    if capacity < CAPACITY_MIN:
        capacity = CAPACITY_MIN
    column.item_size = 8 if kind == b"q" else 4 if kind == b"i" else 1
    column.format = "q" if kind == b"q" else "i" if kind == b"i" else "B"
    column.data = <uint8_t*> malloc(capacity)
    if column.data == NULL:
        raise MemoryError("no memory for a column")
    column.capacity = capacity
    return column
