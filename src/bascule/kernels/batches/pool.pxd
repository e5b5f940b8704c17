# Memory of batches for other kernels.

from libc.stdint cimport uint8_t

from bascule.kernels.batches.collected cimport Collected
from bascule.kernels.envelope.messages cimport HeaderView
from bascule.kernels.records.builder cimport BatchBuilder

cdef class BatchPool:
    # Memory for the batches of all partitions of a broker. For the thread of the event loop alone.
    cdef object new_builder
    cdef readonly size_t bytes_max              # unused memory that is kept
    cdef readonly size_t bytes_kept
    cdef Collected* spare
    cdef size_t spare_count
    cdef size_t spare_capacity
    cdef list builders                          # idle BatchBuilder objects, without memory
    cdef HeaderView* headers                    # room for the headers of one message, those of NATS and those of its envelope
    cdef uint8_t* encoded                       # and for the same as a record has them
    cdef size_t encoded_capacity
    cdef bint take(self, Collected* collected) noexcept nogil
    cdef void give_back(self, Collected* collected) noexcept nogil
    cdef uint8_t* room_for_headers(self, size_t size) noexcept nogil
    cdef BatchBuilder idle_builder(self)
    cdef BatchBuilder builder_around(self, Collected* collected)
    cdef void builder_back(self, BatchBuilder builder, Collected* collected)
