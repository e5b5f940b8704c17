# A Subscribe call: record batches in, messages out. Its subscription, in Python, decides what to read and when to end.

from libc.stdint cimport int32_t, int64_t, uint8_t

from bascule.kernels.calls.delivery cimport (
    DELIVERED_ALL, DELIVERED_BUDGET, DELIVERED_DAMAGED, DELIVERED_END, DELIVERED_NO_MEMORY, Delivery, DeliveryCursor,
)
from bascule.kernels.grpc.server cimport GrpcStream
from bascule.kernels.wire.buffers cimport Bytes

ALL = DELIVERED_ALL
BUDGET = DELIVERED_BUDGET
END = DELIVERED_END
DAMAGED = DELIVERED_DAMAGED


cdef class SubscribeStream(GrpcStream):
    def __init__(self, shell):
        self.shell = shell

    cdef int on_open(self) except -1:
        self.lasting = True
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        if self.request is None:
            self.request = self.keep(data, size)
        return 0

    cdef int on_half_close(self) except -1:
        request = self.request if self.request is not None else b""
        self.request = b""
        self.drop_kept()
        self.shell(self, request)
        return 0

    cdef int on_room(self) except -1:
        if self.subscription is not None:
            self.subscription.on_room()
        return 0

    cdef int on_closed(self) except -1:
        subscription = self.subscription
        self.subscription = None
        self.shell = None
        self.batches = None
        if subscription is not None:
            subscription.on_closed()
        return 0

    @property
    def is_over(self):
        return self.finished or self.closed

    def greet(self, bytes stream not None, int32_t partition):
        # An empty message tells the client that the subscription is established.
        self.delivery = Delivery(stream, partition)
        self.send_message(NULL, 0)

    def send(self, bytes message not None):
        self.send_message(message, len(message))

    def has_room(self):
        return self.room() > 0

    def load(self, batches, int64_t first_offset, int64_t end_offset):
        # Deliver the records first_offset <= offset < end_offset of uncompressed, unencrypted batches.
        self.batches = Bytes(batches)
        self.cursor.batch_at = 0
        self.cursor.record_at = 0
        self.cursor.record_index = 0
        self.cursor.next_offset = first_offset
        self.cursor.last_offset = -1
        self.end_offset = end_offset

    def unload(self):
        self.batches = None

    @property
    def loaded_bytes(self):
        return 0 if self.batches is None else self.batches.size

    @property
    def next_offset(self):
        # one more than the offset of the last message written
        return self.cursor.next_offset

    def deliver(self):
        # Write messages while there is room. BUDGET: the room is used up; the subscription's on_room() will be called.
        cdef size_t room
        cdef Bytes batches = self.batches
        cdef int outcome
        if batches is None:
            return DELIVERED_ALL
        while True:
            room = self.room()
            if room == 0:
                return DELIVERED_BUDGET
            with nogil:
                outcome = self.delivery.deliver(
                    self.outgoing, batches.data, batches.size, &self.cursor, self.end_offset, room
                )
            self.want_flush()
            if outcome == DELIVERED_NO_MEMORY:
                raise MemoryError("no memory for messages to a subscriber")
            if outcome != DELIVERED_BUDGET:
                self.batches = None
                return outcome

    @property
    def messages(self):
        return self.cursor.messages

    @property
    def message_bytes(self):
        return self.cursor.bytes
