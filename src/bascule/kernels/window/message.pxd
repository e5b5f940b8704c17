# A message on its way to a partition, and the lane that keeps its order.


cdef class PublishLane:
    cdef public Py_ssize_t in_flight
    cdef public long long next_sequence
    cdef public int partition       # goes into the acks
    cdef public object on_idle
    cdef int leave(self) except -1


cdef class PublishMessage:
    cdef readonly PublishLane lane
    cdef readonly bytes value
    cdef readonly bytes key                 # None without
    cdef readonly object headers            # dict[str, bytes], or None
    cdef readonly long long expected_offset
    cdef readonly object future
    cdef readonly double deadline
    cdef readonly bint is_alone
    cdef readonly tuple call
    cdef public long long sequence
    cdef public object carrier
    cdef public str led_by
    cdef public double sent_at
    cdef public bint is_in_doubt
    cdef public object error
    cdef readonly bint is_settled
    cdef bint end(self) except -1
    cdef int succeed(self, object ack) except -1
