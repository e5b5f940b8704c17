# Publishes that wait for their ack, and the Python objects of publishes and acks.
#
# An ack carries the correlation id of its publish. For an error the response carries it, and the ack is empty.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from bascule.kernels.envelope.messages cimport (
    ACK_DISK_FULL, ACK_ENCRYPTION, ACK_INCORRECT_OFFSET, ACK_INVALID_PRODUCER, ACK_NOT_STORED, ACK_OK, ACK_OUT_OF_SEQUENCE, ACK_PRODUCER_FENCED,
    ACK_TOO_LARGE, AckView, PublishView, publish_envelope_size, read_ack_envelope,
    write_publish_envelope,
)
from bascule.kernels.window.columns cimport Column, new_column
from bascule.kernels.window.message cimport PublishMessage
from bascule.kernels.window.wire cimport (
    CORRELATION_ID_MAX, ResponseView, encode_headers, merge_ack, publish_request_size, read_publish_response, write_decimal,
    write_publish_request,
)
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.protobuf cimport (
    GROUP_DEPTH_MAX, WIRE_BYTES, bytes_field_size, number_field_size, write_bytes_field, write_number_field,
)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

STORED = OUTCOME_STORED
WAITING = OUTCOME_WAITING
OUTCOME_UNKNOWN = OUTCOME_IS_UNKNOWN
NOT_SENT = OUTCOME_NOT_SENT
SENT = OUTCOME_SENT
FAILED = OUTCOME_FAILED

# Codes of a PublishAsyncError.
cdef enum:
    CODE_UNKNOWN = 0
    CODE_BAD_REQUEST = 1
    CODE_INTERNAL = 3
    CODE_INCORRECT_OFFSET = 5
    CODE_ENCRYPTION_FAILED = 6
    CODE_PRODUCER_FENCED = 1000
    CODE_OUT_OF_SEQUENCE = 1001
    CODE_DISK_FULL = 1002

cdef enum:
    ENVELOPE_HEADERS_FIELD = 9
    REQUEST_HEADERS_FIELD = 5
    TO_SUBJECT_HEADERS_FIELD = 4
    WINDOW_MAX = 1 << 20


cdef inline str text_of(const uint8_t* data, uint32_t size):
    return PyUnicode_DecodeUTF8(<const char*> data, size, NULL) if size else ""


cdef inline str same_text(str known, const uint8_t* data, uint32_t size):
    # `known` if it has these bytes: a million acks share one text object.
    cdef Py_ssize_t known_size = 0
    cdef const char* known_data
    if known is not None:
        known_data = PyUnicode_AsUTF8AndSize(known, &known_size)
        if known_size == size and (size == 0 or memcmp(known_data, data, size) == 0):
            return known
    return text_of(data, size)


# ── acks ─────────────────────────────────────────────────────────────────────────────────────────


@cython.final
@cython.no_gc
cdef class Ack:
    cdef tuple fields(self):
        return (
            self.stream, self.partition_subject, self.message_subject, self.offset, self.ack_inbox, self.correlation_id,
            self.ack_policy, self.reception_timestamp, self.commit_timestamp, self.error, self.duplicate, self.partition,
        )

    def __eq__(self, other):
        return self.fields() == (<Ack> other).fields() if isinstance(other, Ack) else NotImplemented

    def __hash__(self):
        return hash(self.fields())

    def __repr__(self):
        return (
            f"Ack(stream={self.stream!r}, partition={self.partition}, offset={self.offset}, partition_subject={self.partition_subject!r}, "
            f"message_subject={self.message_subject!r}, ack_policy={self.ack_policy}, "
            f"reception_timestamp={self.reception_timestamp}, commit_timestamp={self.commit_timestamp}, error={self.error}"
            f"{', duplicate=True' if self.duplicate else ''})"
        )


cdef Ack ack_like(Ack last, AckView* view):
    cdef Ack ack = Ack.__new__(Ack)
    if last is not None:
        ack.stream = same_text(last.stream, view.stream, view.stream_size)
        ack.partition_subject = same_text(last.partition_subject, view.partition_subject, view.partition_subject_size)
        ack.message_subject = same_text(last.message_subject, view.msg_subject, view.msg_subject_size)
        ack.ack_inbox = same_text(last.ack_inbox, view.ack_inbox, view.ack_inbox_size)
    else:
        ack.stream = text_of(view.stream, view.stream_size)
        ack.partition_subject = text_of(view.partition_subject, view.partition_subject_size)
        ack.message_subject = text_of(view.msg_subject, view.msg_subject_size)
        ack.ack_inbox = text_of(view.ack_inbox, view.ack_inbox_size)
    ack.correlation_id = text_of(view.correlation_id, view.correlation_id_size)
    ack.offset = view.offset
    ack.reception_timestamp = view.reception_timestamp
    ack.commit_timestamp = view.commit_timestamp
    ack.ack_policy = view.ack_policy
    ack.error = view.error
    ack.duplicate = view.duplicate
    ack.partition = -1
    return ack


def decode_ack(data):
    cdef Bytes source = Bytes(data)
    cdef AckView view
    memset(&view, 0, sizeof(AckView))
    if source.size > INT32_MAX or not merge_ack(source.data, source.size, GROUP_DEPTH_MAX, &view):
        raise ValueError("an ack is not protobuf")
    return ack_like(None, &view)


def decode_ack_envelope(data):
    cdef Bytes source = Bytes(data)
    cdef AckView view
    return ack_like(None, &view) if read_ack_envelope(source.data, source.size, &view) else None


def decode_publish_response(data):
    cdef Bytes source = Bytes(data)
    cdef ResponseView view
    if not read_publish_response(source.data, source.size, &view):
        raise ValueError("an answer is not protobuf")
    return (
        ack_like(None, &view.ack) if view.has_ack else None,
        (view.error_code, text_of(view.error_text, view.error_text_size)) if view.has_error else None,
        text_of(view.correlation_id, view.correlation_id_size),
    )


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


cdef Column checked_ends(str name, object ends, Py_ssize_t bytes_there):
    # A copy, which the caller cannot change after the check.
    cdef object view = memoryview(ends)
    cdef Bytes source
    cdef Column column
    cdef const int64_t* numbers
    cdef int64_t before = 0
    cdef Py_ssize_t index
    if view.itemsize != 8 or view.ndim != 1 or view.format not in ("q", "l", "<q", "<l"):
        raise ValueError(f"{name} has to be a buffer of 64 bit integers")
    source = Bytes(view)
    column = new_column(b"q", source.size)
    column.size = source.size
    if source.size:
        memcpy(column.data, source.data, source.size)
    numbers = <const int64_t*> column.data
    for index in range(source.size // 8):
        if not before <= numbers[index] <= bytes_there or numbers[index] - before > INT32_MAX:
            raise ValueError(f"{name}[{index}] is {numbers[index]}: positions must increase, up to the {bytes_there} bytes given")
        before = numbers[index]
    return column


cdef tuple joined(object items):
    # A list of bytes as one buffer, and the end of each. None is empty.
    cdef list parts = []
    cdef Column column = new_column(b"q", 8 * <size_t> len(items))
    cdef int64_t end = 0
    cdef bytes part
    for item in items:
        part = item if item is not None else b""
        if PyBytes_GET_SIZE(part) > INT32_MAX:
            raise ValueError("a message has at most 2 GiB")
        end += PyBytes_GET_SIZE(part)
        parts.append(part)
        if column.add_number(end):
            raise MemoryError("no memory for columns")
    return Bytes(b"".join(parts)), column


@cython.final
cdef class PublishColumns:
    def __cinit__(
        self, PublishTarget target not None, values, value_ends=None, keys=None, key_ends=None, *, headers=None,
        header_ends=None, waiter=None, double deadline=0.0,
    ):
        cdef Py_ssize_t row
        if value_ends is None:
            self.values, self.value_ends = joined(values)
        else:
            self.values = Bytes(values)
            self.value_ends = checked_ends("value_ends", value_ends, self.values.size)
        self.count = <Py_ssize_t> self.value_ends.size // 8
        if keys is None and key_ends is not None:
            raise ValueError("key_ends without keys")
        if keys is not None:
            if key_ends is None:
                self.keys, self.key_ends = joined(keys)
            else:
                self.keys = Bytes(keys)
                self.key_ends = checked_ends("key_ends", key_ends, self.keys.size)
            if self.key_ends.size != self.value_ends.size:
                raise ValueError(f"there are {self.key_ends.size // 8} keys for {self.count} values")
        if headers is not None:
            self.headers = Bytes(headers)
            self.header_ends = checked_ends("header_ends", header_ends, self.headers.size)
            if self.header_ends.size != self.value_ends.size:
                raise ValueError(f"there are headers of {self.header_ends.size // 8} messages for {self.count} values")
        self.offset_column = new_column(b"q", 8 * <size_t> self.count)
        self.outcome_column = new_column(b"i", 4 * <size_t> self.count)
        self.offset_column.size = 8 * <size_t> self.count
        self.outcome_column.size = 4 * <size_t> self.count
        memset(self.offset_column.data, 0xFF, self.offset_column.size)
        for row in range(self.count):
            (<int32_t*> self.outcome_column.data)[row] = OUTCOME_WAITING
        self.texts = {}
        self.target = target
        self.waiter = waiter
        self.deadline = deadline

    def __len__(self):
        return self.count

    @property
    def done(self):
        return self.answered == self.count

    @property
    def offsets(self):
        return memoryview(self.offset_column)

    @property
    def outcomes(self):
        return memoryview(self.outcome_column)

    cdef void span(self, Py_ssize_t row, const uint8_t** value, size_t* value_size, const uint8_t** key, size_t* key_size) noexcept:
        cdef const int64_t* ends = <const int64_t*> self.value_ends.data
        cdef int64_t start = ends[row - 1] if row else 0
        value[0] = self.values.data + start
        value_size[0] = ends[row] - start
        key[0] = NULL
        key_size[0] = 0
        if self.keys is not None:
            ends = <const int64_t*> self.key_ends.data
            start = ends[row - 1] if row else 0
            key[0] = self.keys.data + start
            key_size[0] = ends[row] - start

    cdef void header_span(self, Py_ssize_t row, const uint8_t** headers, size_t* size) noexcept:
        cdef const int64_t* ends
        cdef int64_t start
        if self.headers is not None:
            ends = <const int64_t*> self.header_ends.data
            start = ends[row - 1] if row else 0
            headers[0] = self.headers.data + start
            size[0] = ends[row] - start

    cdef int answer(self, int64_t row, int32_t outcome, int64_t offset, str text) except -1:
        (<int32_t*> self.outcome_column.data)[row] = outcome
        (<int64_t*> self.offset_column.data)[row] = offset
        self.answered += 1
        if outcome != OUTCOME_STORED and outcome != OUTCOME_SENT:
            self.failed += 1
            if outcome >= OUTCOME_FAILED and outcome not in self.texts:
                self.texts[outcome] = text
        return self.tell() if self.answered == self.count else 0

    cdef int tell(self) except -1:
        cdef object waiter = self.waiter
        self.waiter = None
        if waiter is not None and not waiter.done():
            waiter.set_result(self)
        return 0

    cdef int give_up_rest(self) except -1:
        cdef Py_ssize_t row
        for row in range(self.sent, self.count):
            self.answer(row, OUTCOME_NOT_SENT, -1, None)
        return 0


# ── the window ───────────────────────────────────────────────────────────────────────────────────


cpdef tuple refusal(int32_t error):
    # Code and text of PublishAsync for the error in an ack.
    if error == ACK_INCORRECT_OFFSET:
        return CODE_INCORRECT_OFFSET, "incorrect expected offset"
    if error == ACK_TOO_LARGE:
        return CODE_BAD_REQUEST, (
            "message exceeds max replication size, or a limit of its parts: 1048576 bytes of key, 4096 headers, 1048576 bytes of headers"
        )
    if error == ACK_ENCRYPTION:
        return CODE_ENCRYPTION_FAILED, "the value could not be encrypted"
    if error == ACK_NOT_STORED:
        return CODE_INTERNAL, "the partition's leader is changing: the message was not stored, publish it again"
    if error == ACK_INVALID_PRODUCER:
        return CODE_BAD_REQUEST, "the producer headers are malformed"
    if error == ACK_PRODUCER_FENCED:
        return CODE_PRODUCER_FENCED, "a newer epoch of this producer has published"
    if error == ACK_OUT_OF_SEQUENCE:
        return CODE_OUT_OF_SEQUENCE, "a message before this one is missing"
    if error == ACK_DISK_FULL:
        return CODE_DISK_FULL, "the disk of the partition's leader is full: the message was not stored"
    return CODE_UNKNOWN, "the broker did not store the message, or does not know whether it did"


cdef class PublishWindow:
    def __cinit__(self, size_t size=8192, *, on_failed=None, on_lost=None):
        cdef uint32_t index
        if not 1 <= size <= WINDOW_MAX or size & (size - 1):
            raise ValueError(f"a window has a power of two of slots, at most {WINDOW_MAX}")
        self.slots = <Slot*> calloc(size, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError("no memory for a window")
        self.size = <uint32_t> size
        self.waiters = [None] * size
        self.on_failed = on_failed
        self.on_lost = on_lost
        for index in range(self.size):
            self.slots[index].id = index
            self.slots[index].next_free = index + 1

    def __dealloc__(self):
        free(self.slots)

    @property
    def free(self):
        return self.size - self.outstanding

    cdef Slot* occupy(self, object waiter, int64_t row, double deadline) except NULL:
        cdef uint32_t index = self.first_free
        cdef Slot* slot = self.slots + index
        if index == self.size:
            raise AssertionError("the window is full")
        self.first_free = slot.next_free
        self.waiters[index] = waiter
        slot.used = True
        slot.row = row
        slot.deadline = deadline
        slot.number = self.published
        self.published += 1
        self.outstanding += 1
        return slot

    cdef object vacate(self, Slot* slot):
        cdef uint32_t index = <uint32_t> (slot - self.slots)
        cdef object waiter = self.waiters[index]
        self.waiters[index] = None
        slot.used = False
        slot.id += self.size
        slot.next_free = self.first_free
        self.first_free = index
        self.outstanding -= 1
        return waiter

    cdef Slot* find(self, const uint8_t* id, uint32_t size) noexcept:
        cdef uint64_t number = 0
        cdef uint32_t index
        cdef Slot* slot
        if not 0 < size < CORRELATION_ID_MAX:
            return NULL
        for index in range(size):
            if not 48 <= id[index] <= 57:
                return NULL
            number = number * 10 + (id[index] - 48)
        slot = self.slots + (number & (self.size - 1))
        return slot if slot.used and slot.id == number else NULL

    cdef Ack make_ack(self, AckView* view):
        self.last = ack_like(self.last, view)
        return self.last

    cdef int succeed(self, AckView* view) except -1:
        cdef Slot* slot = self.find(view.correlation_id, view.correlation_id_size)
        cdef int64_t row
        cdef object waiter
        cdef Ack ack
        if slot == NULL:
            self.strays += 1
            return 0
        if view.error != ACK_OK:
            code, text = refusal(view.error)
            return self.end_slot(slot, code, text)
        row = slot.row
        waiter = self.vacate(slot)
        self.acknowledged += 1
        if row >= 0:
            return (<PublishColumns> waiter).answer(row, OUTCOME_STORED, view.offset, None)
        if type(waiter) is PublishMessage:
            ack = self.make_ack(view)
            ack.partition = (<PublishMessage> waiter).lane.partition
            return (<PublishMessage> waiter).succeed(ack)
        if waiter is not None and not waiter.done():
            waiter.set_result(self.make_ack(view))
        return 0

    cdef int fail(self, const uint8_t* id, uint32_t id_size, int32_t code, str text) except -1:
        cdef Slot* slot = self.find(id, id_size)
        if slot != NULL:
            return self.end_slot(slot, code, text)
        self.failed += 1
        if id_size:
            self.strays += 1
        elif self.on_failed is not None:
            self.on_failed(None, -1, code, text)
        return 0

    cdef int end_slot(self, Slot* slot, int32_t code, str text) except -1:
        cdef int64_t row = slot.row
        cdef uint64_t number = slot.number
        cdef object waiter = self.vacate(slot)
        self.failed += 1
        if row >= 0:
            return (<PublishColumns> waiter).answer(row, OUTCOME_FAILED + (code if code > 0 else 0), -1, text)
        if self.on_failed is not None:
            self.on_failed(waiter, number, code, text)
        return 0

    cdef int answer(self, ResponseView* view) except -1:
        if view.has_error:
            return self.fail(
                view.correlation_id, view.correlation_id_size, view.error_code, text_of(view.error_text, view.error_text_size),
            )
        if view.has_ack:
            return self.succeed(&view.ack)
        self.strays += 1
        return 0

    cdef Py_ssize_t lose(self, double now, bint all) except -1:
        cdef list lost = []
        cdef list rows = []
        cdef uint32_t index
        cdef Slot* slot
        cdef Py_ssize_t count = 0
        if self.outstanding == 0:
            return 0
        for index in range(self.size):
            slot = self.slots + index
            if slot.used and (all or 0 < slot.deadline <= now):
                count += 1
                if slot.row >= 0:
                    rows.append((slot.row, self.vacate(slot)))
                else:
                    lost.append((slot.number, self.vacate(slot)))
        for row, columns in rows:
            (<PublishColumns> columns).answer(row, OUTCOME_IS_UNKNOWN, -1, None)
        if lost and self.on_lost is not None:
            lost.sort(key=first_of)
            self.on_lost(lost)
        if count and self.on_freed is not None:
            self.on_freed()
        return count

    # for publishers over NATS

    def take(self, waiter=None, double deadline=0.0):
        cdef uint8_t id[CORRELATION_ID_MAX]
        cdef uint32_t size
        if self.outstanding == self.size:
            return None
        size = write_decimal(id, self.occupy(waiter, -1, deadline).id)
        return PyBytes_FromStringAndSize(<const char*> id, size)

    def resolve_envelope(self, data):
        cdef Bytes source = Bytes(data)
        cdef AckView view
        cdef uint64_t strays = self.strays
        if not read_ack_envelope(source.data, source.size, &view):
            return False
        self.succeed(&view)
        return self.strays == strays

    def pending(self):
        cdef list found = []
        cdef uint32_t index
        for index in range(self.size):
            if self.slots[index].used and self.slots[index].row < 0:
                found.append((self.slots[index].number, self.waiters[index]))
        found.sort(key=first_of)
        return [waiter for _, waiter in found]

    def expire(self, double now):
        return self.lose(now, False)

    def lose_all(self):
        return self.lose(0.0, True)


def first_of(tuple pair):
    return pair[0]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


@cython.final
cdef class PublishTarget:
    def __cinit__(self, str stream not None, int32_t partition=0, int32_t ack_policy=0):
        cdef bytes name = stream.encode()
        cdef uint8_t* out
        cdef size_t size = bytes_field_size(len(name)) + number_field_size(partition) + number_field_size(ack_policy)
        self.encoded = PyBytes_FromStringAndSize(NULL, size)
        out = <uint8_t*> PyBytes_AS_STRING(self.encoded)
        out = write_bytes_field(out, 3, <const uint8_t*> PyBytes_AS_STRING(name), len(name))
        out = write_number_field(out, 4, partition)
        write_number_field(out, 8, ack_policy)
        self.stream = stream
        self.partition = partition
        self.ack_policy = ack_policy


def encode_publish_request(
    PublishTarget target not None, bytes value not None, bytes key=None, headers=None, bytes correlation_id not None=b"",
    int64_t expected_offset=-1, bytes ack_inbox not None=b"",
):
    cdef bytes more = encode_headers(headers, REQUEST_HEADERS_FIELD) if headers else b""
    cdef bytes name = key if key is not None else b""
    cdef size_t inbox_size = bytes_field_size(len(ack_inbox))
    cdef size_t size = publish_request_size(len(target.encoded), len(name), len(value), len(more), len(correlation_id), expected_offset)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size + inbox_size)
    cdef uint8_t* at = write_publish_request(
        <uint8_t*> PyBytes_AS_STRING(out), <const uint8_t*> PyBytes_AS_STRING(target.encoded), len(target.encoded),
        <const uint8_t*> PyBytes_AS_STRING(name), len(name),
        <const uint8_t*> PyBytes_AS_STRING(value), len(value), <const uint8_t*> PyBytes_AS_STRING(more), len(more),
        <const uint8_t*> PyBytes_AS_STRING(correlation_id), len(correlation_id), expected_offset,
    )
    write_bytes_field(at, 6, <const uint8_t*> PyBytes_AS_STRING(ack_inbox), len(ack_inbox))
    return out


def encode_publish_envelope(
    bytes value not None, bytes key=None, headers=None, bytes correlation_id not None=b"", int64_t expected_offset=-1,
    bytes ack_inbox not None=b"", int32_t ack_policy=0,
):
    cdef bytes more = encode_headers(headers, ENVELOPE_HEADERS_FIELD) if headers else b""
    cdef bytes name = key if key is not None else b""
    cdef PublishView view
    cdef bytes out
    memset(&view, 0, sizeof(PublishView))
    view.key, view.key_size = <const uint8_t*> PyBytes_AS_STRING(name), len(name)
    view.value, view.value_size = <const uint8_t*> PyBytes_AS_STRING(value), len(value)
    view.correlation_id = <const uint8_t*> PyBytes_AS_STRING(correlation_id)
    view.correlation_id_size = len(correlation_id)
    view.headers = <const uint8_t*> PyBytes_AS_STRING(more)
    view.headers_end = view.headers + len(more)
    view.headers_size = len(more)
    view.headers_tag = ENVELOPE_HEADERS_FIELD << 3 | WIRE_BYTES
    view.expected_offset = expected_offset
    view.ack_policy = ack_policy
    out = PyBytes_FromStringAndSize(NULL, publish_envelope_size(&view, len(ack_inbox)))
    write_publish_envelope(
        <uint8_t*> PyBytes_AS_STRING(out), &view, <const uint8_t*> PyBytes_AS_STRING(ack_inbox), len(ack_inbox),
    )
    return out


def encode_publish_to_subject(
    str subject not None, bytes value not None, bytes key=None, headers=None, bytes correlation_id not None=b"",
    bytes ack_inbox not None=b"", int32_t ack_policy=0,
):
    cdef bytes more = encode_headers(headers, TO_SUBJECT_HEADERS_FIELD) if headers else b""
    cdef list parts = []
    for field, content in ((1, key or b""), (2, value), (3, subject.encode()), (5, ack_inbox), (6, correlation_id)):
        parts.append(bytes_field(field, content))
    parts.append(more)
    parts.append(number_field(7, ack_policy))
    return b"".join(parts)


cdef bytes bytes_field(uint8_t field, bytes content):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, bytes_field_size(len(content)))
    write_bytes_field(<uint8_t*> PyBytes_AS_STRING(out), field, <const uint8_t*> PyBytes_AS_STRING(content), len(content))
    return out


cdef bytes number_field(uint8_t field, int64_t number):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, number_field_size(number))
    write_number_field(<uint8_t*> PyBytes_AS_STRING(out), field, number)
    return out
