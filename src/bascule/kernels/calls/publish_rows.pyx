# Many messages published from inside the broker under one ack inbox: an ack's correlation id is the number of its row.
#
# A correlation id is a row number in decimal digits. An ack with any other id, or for a row that waits for none, is ignored.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from bascule.kernels.calls.publish cimport Verdict, InternalReceiver, PublishGate, Target
from bascule.kernels.envelope.messages cimport ACK_ALL, ACK_LEADER, ACK_OK, AckView, PublishView, read_publish_request

SENT = Verdict.GOOD
MALFORMED = Verdict.MALFORMED
NO_PARTITION = Verdict.NO_PARTITION
READONLY = Verdict.READONLY
PAUSED = Verdict.PAUSED
DISCONNECTED = Verdict.DISCONNECTED
TOO_LARGE = Verdict.TOO_LARGE

cdef enum:
    DIGITS_MAX = 20


cdef uint32_t write_digits(uint8_t* out, Py_ssize_t number) noexcept nogil:
    # How many digits were written, at most DIGITS_MAX.
    cdef uint8_t digits[DIGITS_MAX]
    cdef uint32_t count = 0, index
    while True:
        digits[count] = <uint8_t> (48 + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    for index in range(count):
        out[index] = digits[count - 1 - index]
    return count


cdef Py_ssize_t read_digits(const uint8_t* at, uint32_t size, Py_ssize_t below) noexcept nogil:
    # A number below `below`; −1 for anything else.
    cdef Py_ssize_t number = 0
    cdef uint32_t index
    if size == 0 or size > DIGITS_MAX:
        return -1
    for index in range(size):
        if at[index] < 48 or at[index] > 57:
            return -1
        number = number * 10 + (at[index] - 48)
        if number >= below:
            return -1
    return number


cdef class RowPublisher(InternalReceiver):
    def __cinit__(self, PublishGate gate not None, list requests not None, callback):
        cdef Py_ssize_t index
        self.gate = gate
        self.requests = requests
        self.callback = callback
        self.count = len(requests)
        self.wake_at = -1
        self.offsets_ = <int64_t*> malloc((self.count + 1) * sizeof(int64_t))
        self.waiting = <uint32_t*> calloc(self.count + 1, sizeof(uint32_t))
        if self.offsets_ == NULL or self.waiting == NULL:
            raise MemoryError("no memory for rows")
        for index in range(self.count):
            self.offsets_[index] = -1
        gate.register(self)

    def __dealloc__(self):
        free(self.offsets_)
        free(self.waiting)

    def send(self, Py_ssize_t rows, Py_ssize_t window, size_t window_bytes):
        # Publish at most `rows` more while the window has room. Returns the verdict on the last one.
        cdef PublishView view
        cdef Target target
        cdef bytes request
        cdef uint8_t digits[DIGITS_MAX]
        cdef int verdict = Verdict.GOOD
        cdef size_t size
        while rows > 0 and self.sent < self.count and not self.is_lost and self.error == ACK_OK:
            request = <bytes?> self.requests[self.sent]
            size = PyBytes_GET_SIZE(request)
            if self.unacked and (self.unacked >= window or self.unacked_bytes + size > window_bytes):
                break
            if self.gate.nats.output.size() > self.gate.output_bytes_max:
                break
            if not read_publish_request(<const uint8_t*> PyBytes_AS_STRING(request), size, &view):
                verdict = Verdict.MALFORMED
            elif view.ack_policy != ACK_LEADER and view.ack_policy != ACK_ALL:
                verdict = Verdict.MALFORMED     # the outcome would stay unknown without an ack
            else:
                target = self.gate.judge(&view, &verdict)
            if verdict == Verdict.GOOD:
                view.correlation_id = digits
                view.correlation_id_size = write_digits(digits, self.sent)
                verdict = self.gate.publish(
                    <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject), &view,
                    <const uint8_t*> PyBytes_AS_STRING(self.inbox), <uint32_t> PyBytes_GET_SIZE(self.inbox),
                )
            if verdict != Verdict.GOOD:
                break
            self.waiting[self.sent] = <uint32_t> size + 1
            self.unacked += 1
            self.unacked_bytes += size
            self.sent += 1
            rows -= 1
        return verdict

    cdef int on_ack(self, AckView* ack) except -1:
        cdef Py_ssize_t row = read_digits(ack.correlation_id, ack.correlation_id_size, self.sent)
        if row < 0 or self.waiting[row] == 0:
            return 0
        self.unacked_bytes -= self.waiting[row] - 1
        self.waiting[row] = 0
        self.unacked -= 1
        if ack.error == ACK_OK:
            self.offsets_[row] = ack.offset
            self.acked += 1
        elif self.error == ACK_OK:
            self.error = ack.error
        if self.unacked <= self.wake_at or self.error != ACK_OK:
            self.wake()
        return 0

    def lost(self):
        # Rows without ack may or may not be stored.
        if self.unacked:
            self.is_lost = True
            self.wake()

    cdef int wake(self) except -1:
        if self.wake_at >= 0:
            self.wake_at = -1
            if self.callback is not None:
                self.callback()
        return 0

    def wait(self, Py_ssize_t unacked):
        # True: the callback will be called once, when at most this many rows are unacked, or after an error. False: that holds already.
        if self.unacked <= unacked or self.is_lost or self.error != ACK_OK:
            return False
        self.wake_at = unacked
        return True

    def offsets(self):
        return [self.offsets_[index] for index in range(self.count)]

    def close(self):
        self.callback = None
        self.gate.forget(self)
