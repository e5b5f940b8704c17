# The client's streaming calls. No Python object is made for a message of a subscription or of columns.

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from bascule.kernels.client.messages cimport (
    TAIL_BROKEN, MessageBatch, MessageHead, TailView, is_empty_message, new_batch, read_head, read_tail,
)
from bascule.kernels.envelope.messages cimport ACK_ALL, ACK_LEADER
from bascule.kernels.grpc.client cimport ClientStream
from bascule.kernels.grpc.messages cimport STATUS_INTERNAL
from bascule.kernels.window.message cimport PublishMessage
from bascule.kernels.window.window cimport OUTCOME_SENT, PublishColumns, PublishTarget, PublishWindow, Slot
from bascule.kernels.window.wire cimport (
    CORRELATION_ID_MAX, ResponseView, encode_headers, publish_request_size, read_publish_response, write_decimal,
    write_publish_request,
)
from bascule.kernels.wire.buffers cimport Bytes

cdef enum:
    REQUEST_HEADERS_FIELD = 5


cdef class SubscribeClientStream(ClientStream):
    def __cinit__(self, request, on_ready=None, *, size_t batch_bytes=1 << 20, size_t waiting_bytes_max=8 << 20):
        self.on_ready = on_ready
        self.batch_bytes = batch_bytes
        self.waiting_bytes_max = waiting_bytes_max
        self.last_offset = -1
        self.complete = deque()
        self.request = Bytes(request)

    cdef int on_room(self) except -1:
        # The call has begun: send the request, and nothing else.
        self.send_message(self.request.data, self.request.size)
        self.half_close()
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        cdef MessageHead head
        cdef TailView tail
        if not self.confirmed:
            self.confirmed = True
            # The first message of a server with a handshake is empty; one without begins with a message.
            if read_head(data, size, &head) and read_tail(&head, &tail) != TAIL_BROKEN and is_empty_message(&head, &tail):
                if self.on_ready is not None:
                    self.on_ready()
                return 0
        return self.take_message(data, size)

    cdef int take_message(self, const uint8_t* data, size_t size) except -1:
        cdef MessageBatch batch = self.growing
        cdef size_t before
        if batch is None:
            batch = self.growing = new_batch(self.bytes_before, self.messages_before)
        before = batch.bytes_used()
        if batch.add(data, size):
            return self.break_off(
                STATUS_INTERNAL, f"message {self.message_count} of the subscription cannot be decoded: it is not protobuf",
            )
        self.waiting += 1
        self.waiting_bytes += batch.bytes_used() - before
        if batch.bytes_used() >= self.batch_bytes:
            self.put_aside()
        return 0

    cdef int put_aside(self) except -1:
        cdef MessageBatch batch = self.growing
        self.growing = None
        self.last_offset = batch.last_offset
        self.bytes_before = min(batch.value_column.size, 2 * self.batch_bytes)
        self.messages_before = batch.count
        batch.complete()
        self.complete.append(batch)
        return 0

    cdef int on_messages_done(self) except -1:
        if self.growing is not None and self.growing.count:
            self.last_offset = self.growing.last_offset
        if self.waiting_bytes > self.waiting_bytes_max and not self.withheld:
            self.withhold(True)
        return self.announce() if self.waiting else 0

    cdef int announce(self) except -1:
        if not self.announced and self.on_ready is not None:
            self.announced = True
            self.on_ready()
        return 0

    cdef int on_finished(self, int status, bytes message) except -1:
        cdef object on_ready = self.on_ready
        # drops the reference cycle with the callback
        self.on_ready = None
        if on_ready is not None:
            on_ready()
        return 0

    def take(self):
        cdef MessageBatch batch
        self.announced = False
        if not self.complete:
            if self.growing is None or self.growing.count == 0:
                return None
            self.put_aside()
        batch = self.complete.popleft()
        self.waiting -= batch.count
        self.waiting_bytes -= batch.bytes_used()
        if self.withheld and self.waiting_bytes <= self.waiting_bytes_max // 2:
            self.withhold(False)
        return batch

    @property
    def is_held_back(self):
        return self.withheld


cdef class PublishAsyncClientStream(ClientStream):
    def __cinit__(self, size_t window=8192, *, on_writable=None, on_failed=None, on_lost=None, on_ended=None):
        self.on_writable = on_writable
        self.on_ended = on_ended
        self.window = PublishWindow(window, on_failed=on_failed, on_lost=on_lost)
        self.window.on_freed = self.freed
        self.queue = deque()

    def freed(self):
        self.pump()

    # ── out ──

    cdef bint is_open(self) except -1:
        # A message is sent now, or as soon as the call has begun.
        return not self.finished and not self.sending_closed and not self.queue and self.room() > 0

    @property
    def has_room(self):
        if self.is_open() and self.window.outstanding < self.window.size:
            return True
        self.room_wanted = True
        return False

    @property
    def is_idle(self):
        return not self.queue and self.window.outstanding == 0

    def publish(
        self, PublishTarget target not None, bytes value not None, bytes key=None, headers=None, int64_t expected_offset=-1,
        waiter=None, double deadline=0.0,
    ):
        return self.publish_one(target, value, key, headers, expected_offset, waiter, deadline)

    def publish_message(self, PublishTarget target not None, PublishMessage message not None, headers, double deadline):
        cdef bint acked = target.ack_policy == ACK_LEADER or target.ack_policy == ACK_ALL
        return 0 <= self.publish_one(
            target, message.value, message.key, headers, message.expected_offset, message if acked else None, deadline,
        )

    cdef int64_t publish_one(
        self, PublishTarget target, bytes value, bytes key, headers, int64_t expected_offset, object waiter, double deadline
    ) except -2:
        cdef Slot* slot = NULL
        cdef bytes more = None
        cdef bint acked = target.ack_policy == ACK_LEADER or target.ack_policy == ACK_ALL
        cdef int64_t number = self.window.published
        if not self.is_open() or (acked and self.window.outstanding == self.window.size):
            self.room_wanted = True
            return -1
        if headers:
            more = encode_headers(headers, REQUEST_HEADERS_FIELD)
        if acked:
            slot = self.window.occupy(waiter, -1, deadline)
        else:
            self.window.published += 1
        self.send(
            target,
            <const uint8_t*> PyBytes_AS_STRING(key) if key is not None else NULL, PyBytes_GET_SIZE(key) if key is not None else 0,
            <const uint8_t*> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value),
            <const uint8_t*> PyBytes_AS_STRING(more) if more is not None else NULL,
            PyBytes_GET_SIZE(more) if more is not None else 0,
            slot, expected_offset,
        )
        self.want_flush()
        return number

    cdef size_t send(
        self, PublishTarget target, const uint8_t* key, size_t key_size, const uint8_t* value, size_t value_size,
        const uint8_t* headers, size_t headers_size, Slot* slot, int64_t expected_offset
    ) except? 0:
        # Write one request into `outgoing`; returns its size.
        cdef uint8_t id[CORRELATION_ID_MAX]
        cdef uint32_t id_size = write_decimal(id, slot.id) if slot != NULL else 0
        cdef size_t target_size = PyBytes_GET_SIZE(target.encoded)
        cdef size_t size = publish_request_size(target_size, key_size, value_size, headers_size, id_size, expected_offset)
        cdef uint8_t* at
        try:
            at = self.begin_message(size)
        except BaseException:
            # it was not sent, so no answer will come
            if slot != NULL:
                self.window.vacate(slot)
            raise
        write_publish_request(
            at, <const uint8_t*> PyBytes_AS_STRING(target.encoded), target_size, key, key_size, value, value_size,
            headers, headers_size, id, id_size, expected_offset,
        )
        self.end_message(size)
        return size

    def publish_columns(self, PublishColumns columns not None):
        if columns.begun:
            raise ValueError("columns are published once")
        columns.begun = True
        if columns.count == 0:
            columns.tell()
            return
        if self.finished or self.sending_closed:
            columns.give_up_rest()
            return
        self.queue.append(columns)
        self.pump()

    cdef int pump(self) except -1:
        cdef PublishColumns columns
        if self.pumping:
            return 0
        self.pumping = True
        try:
            while self.queue and not self.finished:
                columns = self.queue[0]
                self.send_columns(columns)
                if columns.sent < columns.count:
                    break
                if self.queue and self.queue[0] is columns:
                    self.queue.popleft()
        finally:
            self.pumping = False
        if self.room_wanted and self.is_open() and self.window.outstanding < self.window.size:
            self.room_wanted = False
            if self.on_writable is not None:
                self.on_writable()
        return 0

    cdef int send_columns(self, PublishColumns columns) except -1:
        cdef PublishTarget target = columns.target
        cdef bint acked = target.ack_policy == ACK_LEADER or target.ack_policy == ACK_ALL
        cdef const uint8_t* value = NULL
        cdef const uint8_t* key = NULL
        cdef const uint8_t* headers = NULL
        cdef size_t value_size = 0, key_size = 0, headers_size = 0, size, room = 0
        cdef Slot* slot = NULL
        cdef Py_ssize_t row
        cdef Py_ssize_t first = columns.sent
        while columns.sent < columns.count:
            if room == 0:
                room = self.room()
                if room == 0:
                    break
            if acked:
                if self.window.outstanding == self.window.size:
                    break
                slot = self.window.occupy(columns, columns.sent, columns.deadline)
            else:
                self.window.published += 1
            columns.span(columns.sent, &value, &value_size, &key, &key_size)
            columns.header_span(columns.sent, &headers, &headers_size)
            size = self.send(target, key, key_size, value, value_size, headers, headers_size, slot, -1)
            room -= min(room, size)
            columns.sent += 1
        if columns.sent > first:
            self.want_flush()
            if not acked:
                for row in range(first, columns.sent):
                    columns.answer(row, OUTCOME_SENT, -1, None)
        return 0

    def expire(self, double now):
        cdef PublishColumns columns
        late = [columns for columns in self.queue if 0 < columns.deadline <= now]
        for columns in late:
            self.queue.remove(columns)
            columns.give_up_rest()
        count = self.window.expire(now)
        if late:
            self.pump()
        return count

    cdef int on_room(self) except -1:
        return self.pump()

    # ── in ──

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        cdef ResponseView view
        if not read_publish_response(data, size, &view):
            return self.break_off(STATUS_INTERNAL, f"answer {self.message_count} of PublishAsync cannot be decoded: it is not protobuf")
        return self.window.answer(&view)

    cdef int on_messages_done(self) except -1:
        return self.pump()

    cdef int on_finished(self, int status, bytes message) except -1:
        cdef PublishColumns columns
        cdef object on_ended = self.on_ended
        self.window.on_freed = None
        self.on_ended = self.on_writable = None
        while self.queue:
            columns = self.queue.popleft()
            columns.give_up_rest()
        self.window.lose_all()
        self.window.on_lost = self.window.on_failed = None
        if on_ended is not None:
            on_ended(status, self.status_text)
        return 0
