# An output buffer. Kernels write at the end without the GIL; Python code sends from the front.
#
# The buffer grows without a limit and shrinks when it is empty: writers check size().

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.memory.account cimport MemoryAccount

cdef extern from "sys/socket.h" nogil:
    ssize_t c_send "send"(int fd, const void* data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef enum:
    CAPACITY_FIRST = 4096
    CAPACITY_KEPT = 1 << 20         # a larger buffer frees its memory when it is empty


@cython.no_gc                       # refers to an account, which refers to no buffer
cdef class OutputBuffer:
    def __cinit__(self):
        self.capacity = CAPACITY_FIRST
        self.data = <uint8_t*> malloc(self.capacity)
        if self.data == NULL:
            raise MemoryError("no memory for an output buffer")

    def __dealloc__(self):
        self.charge_to(None)
        free(self.data)

    cdef void charge_to(self, MemoryAccount account) noexcept:
        if self.account is not None:
            self.account.release(self.capacity)
        self.account = account
        if account is not None:
            account.charge(self.capacity)

    cdef size_t size(self) noexcept nogil:
        return self.end - self.start

    cdef uint8_t* reserve(self, size_t more) noexcept nogil:
        cdef size_t used = self.end - self.start
        cdef size_t capacity = self.capacity
        cdef uint8_t* grown
        if self.end + more <= capacity:
            return self.data + self.end
        if self.views:
            return NULL
        if used + more <= capacity and self.start >= used:
            # fewer bytes are moved than were sent
            memmove(self.data, self.data + self.start, used)
        else:
            while capacity < used + more:
                capacity *= 2
            grown = <uint8_t*> malloc(capacity)
            if grown == NULL:
                return NULL
            memcpy(grown, self.data + self.start, used)
            free(self.data)
            self.data = grown
            if self.account is not None:
                self.account.charge(capacity - self.capacity)
            self.capacity = capacity
        self.start = 0
        self.end = used
        return self.data + used

    cdef void commit(self, size_t written) noexcept nogil:
        self.end += written

    cdef int put(self, const uint8_t* source, size_t count) noexcept nogil:
        cdef uint8_t* at = self.reserve(count)
        if at == NULL:
            return -1
        if count:
            memcpy(at, source, count)
        self.end += count
        return 0

    cdef void drop_front(self, size_t count) noexcept nogil:
        self.start += count
        if self.start < self.end:
            return
        self.start = self.end = 0
        if self.capacity > CAPACITY_KEPT and not self.views:
            self.shrink()

    cdef void shrink(self) noexcept nogil:
        cdef uint8_t* smaller = <uint8_t*> realloc(self.data, CAPACITY_FIRST)
        if smaller != NULL:
            self.data = smaller
            if self.account is not None:
                self.account.release(self.capacity - CAPACITY_FIRST)
            self.capacity = CAPACITY_FIRST

    def __len__(self):
        return self.end - self.start

    def __bytes__(self):
        return PyBytes_FromStringAndSize(<char*> (self.data + self.start), self.end - self.start)

    def append(self, data):
        cdef Bytes given = Bytes(data)
        if self.put(given.data, given.size):
            raise MemoryError("no memory for an output buffer, or it has views")

    def drop(self, size_t count):
        if count > self.end - self.start:
            raise ValueError(f"cannot drop {count} of {self.end - self.start} bytes")
        self.drop_front(count)

    def clear(self):
        self.drop_front(self.end - self.start)

    def send(self, int fd):
        cdef ssize_t sent
        if self.start == self.end:
            return 0
        with nogil:
            sent = c_send(fd, self.data + self.start, self.end - self.start, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= 0:
            self.drop_front(sent)
            return sent
        if errno == EAGAIN or errno == EINTR:
            return 0
        raise OSError(errno, "send")

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data + self.start, self.end - self.start, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1
