# The batch builder for other kernels.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.records.records cimport RecordView


cdef class BatchBuilder:
    cdef object error               # creates the exception for a record that is too large
    cdef uint8_t* buffer
    cdef size_t capacity
    cdef size_t size                # header and subject included
    cdef uint32_t records
    cdef uint64_t last_time_delta
    cdef uint32_t subject_size      # of the batch's subject, at HEADER_SIZE + its length
    cdef uint32_t subject_at
    cdef uint8_t attributes          # ATTR_PRODUCERS, or nothing
    cdef uint64_t refused_size      # size of the batch with the refused record
    cdef bint stamped               # the batch has not changed since the header was written
    cdef Py_ssize_t views           # exported buffers, during which the data must not move
    cdef uint32_t key_bytes_max
    cdef uint32_t value_bytes_max
    cdef uint32_t headers_max
    cdef uint32_t headers_bytes_max
    cdef uint32_t subject_bytes_max
    cdef uint32_t batch_bytes_max
    cdef uint32_t records_max
    cdef int add_record(self, RecordView* record, uint64_t time_delta) noexcept nogil
    cdef int check_sizes(self, RecordView* record) noexcept nogil
    cdef int reserve(self, size_t more) noexcept nogil
    cdef void finish(self, int64_t base_offset, uint64_t leader_epoch, int64_t timestamp) noexcept nogil
    cdef void reset(self) noexcept
    cdef int must_not_be_viewed(self) except -1
    cdef object refused(self, int refusal, RecordView* record)
