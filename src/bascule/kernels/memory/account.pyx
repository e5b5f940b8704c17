# Memory accounts. See account.pxd.


cdef class MemoryAccount:
    def __cinit__(self, size_t most, MemoryAccount whole=None):
        self.most = most
        self.whole = whole

    cdef void charge(self, size_t size) noexcept nogil:
        self.used += size
        if self.whole is not None:
            self.whole.used += size

    cdef void release(self, size_t size) noexcept nogil:
        self.used -= size
        if self.whole is not None:
            self.whole.used -= size

    cdef bint is_exceeded(self) noexcept nogil:
        return self.used > self.most

    cdef bint is_crowded(self) noexcept nogil:
        return self.used > self.most - self.most // 4

    cdef bint is_short(self) noexcept nogil:
        return self.used > self.most // 2 or (self.whole is not None and self.whole.used > self.whole.most // 2)

    @property
    def exceeded(self):
        return self.is_exceeded()
