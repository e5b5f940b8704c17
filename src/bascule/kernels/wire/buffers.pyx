from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t


cdef class Bytes:
    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t*> self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)
