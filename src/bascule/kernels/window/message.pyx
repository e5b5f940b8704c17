# A message on its way to a partition, and the lane that keeps its order. One object is made for each message that is published by
# itself, so both are compiled; the rules for sending again are Python, bascule/client/publish/lane.py.

cimport cython


cdef class PublishLane:
    cdef int leave(self) except -1:
        self.in_flight -= 1
        if self.in_flight == 0 and self.on_idle is not None:
            self.on_idle()
        return 0

    def left(self):
        self.leave()


@cython.final
@cython.freelist(1024)
cdef class PublishMessage:
    def __cinit__(
        self, PublishLane lane not None, bytes value not None, bytes key, headers, long long expected_offset, future, double deadline,
        bint is_alone=False, tuple call=None,
    ):
        self.lane = lane
        self.value = value
        self.key = key
        self.headers = headers
        self.expected_offset = expected_offset
        self.future = future
        self.deadline = deadline
        self.is_alone = is_alone
        self.call = call
        self.sequence = -1
        self.led_by = ""

    def sent(self, carrier not None, str led_by not None, double now):
        if self.sequence < 0:
            self.sequence = self.lane.next_sequence
            self.lane.next_sequence += 1
        self.carrier = carrier
        self.led_by = led_by
        self.sent_at = now
        self.lane.in_flight += 1

    cdef bint end(self) except -1:
        # True for the first of several answers.
        if self.is_settled:
            return False
        self.is_settled = True
        if self.carrier is not None:
            self.carrier = None
            self.lane.leave()
        return True

    cdef int succeed(self, object ack) except -1:
        if self.end() and not self.future.done():
            self.future.set_result(ack)
        return 0

    def settle(self, ack):
        self.succeed(ack)

    def fail(self, error):
        if self.end() and not self.future.done():
            self.future.set_exception(error)
            # Retrieved: publishers report failures in their own way too.
            self.future.exception()

    def quiet_since(self):
        return self.sent_at

    def withdraw(self, error):
        if self.carrier is not None:
            self.lane.failed(self, self.carrier, error)

    # as a waiter of PublishWindow

    def done(self):
        return self.is_settled

    def set_result(self, ack):
        self.succeed(ack)
