# Memory accounts: how many bytes a connection, and a server, hold for their clients.
#
# A buffer charges its account when its memory grows or shrinks, which is rare, and never for each message.


cdef class MemoryAccount:
    cdef readonly size_t used
    cdef readonly size_t most
    cdef readonly MemoryAccount whole           # the account that this one is a part of; None for the account of a server
    cdef public object on_exceeded              # called by the connection that finds the account of the server above its bound
    cdef void charge(self, size_t size) noexcept nogil
    cdef void release(self, size_t size) noexcept nogil
    cdef bint is_exceeded(self) noexcept nogil
    cdef bint is_crowded(self) noexcept nogil   # three quarters are used: refuse new work
    cdef bint is_short(self) noexcept nogil     # half of this account or of the whole is used: buffer little
