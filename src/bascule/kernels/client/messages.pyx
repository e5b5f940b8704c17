# Messages as a subscriber receives them, one by one and as columns.
#
#   Message   1 offset · 2 key · 3 value · 4 timestamp | 5 stream · 6 partition · 7 subject · 8 replySubject · 9 headers · 10 … 12
#             ─────────────── head ───────────────────   ──────────────────────── tail ────────────────────────
#
# Protobuf reads fields from left to right and the last of each counts; a head followed by a known tail therefore has the same
# meaning as before. A tail that contains fields of the head is read each time.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from bascule.kernels.envelope.messages cimport HeaderView, is_tombstone_header, read_entry
from bascule.kernels.window.columns cimport Column, new_column
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.protobuf cimport (
    GROUP_DEPTH_MAX, WIRE_BYTES, WIRE_GROUP_END, WIRE_VARINT, read_number, read_span, read_tag, skip_field,
)
from bascule.kernels.wire.utf8 cimport is_utf8

cdef enum:
    OFFSET_TAG = 1 << 3 | WIRE_VARINT
    KEY_TAG = 2 << 3 | WIRE_BYTES
    VALUE_TAG = 3 << 3 | WIRE_BYTES
    TIMESTAMP_TAG = 4 << 3 | WIRE_VARINT
    STREAM_TAG = 5 << 3 | WIRE_BYTES
    PARTITION_TAG = 6 << 3 | WIRE_VARINT
    SUBJECT_TAG = 7 << 3 | WIRE_BYTES
    REPLY_TAG = 8 << 3 | WIRE_BYTES
    HEADERS_TAG = 9 << 3 | WIRE_BYTES
    INBOX_TAG = 10 << 3 | WIRE_BYTES
    CORRELATION_ID_TAG = 11 << 3 | WIRE_BYTES


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


cdef const uint8_t* read_head_field(const uint8_t* at, const uint8_t* end, uint32_t tag, MessageHead* head) noexcept nogil:
    cdef uint64_t number = 0
    if tag == KEY_TAG:
        return read_span(at, end, &head.key, &head.key_size)
    if tag == VALUE_TAG:
        return read_span(at, end, &head.value, &head.value_size)
    at = read_number(at, end, &number)
    if tag == OFFSET_TAG:
        head.offset = <int64_t> number
    else:
        head.timestamp = <int64_t> number
    return at


cdef inline bint is_head_tag(uint32_t tag) noexcept nogil:
    return tag == OFFSET_TAG or tag == KEY_TAG or tag == VALUE_TAG or tag == TIMESTAMP_TAG


cdef bint read_head(const uint8_t* data, size_t size, MessageHead* head) noexcept nogil:
    cdef const uint8_t* at = data
    cdef const uint8_t* end = data + size
    memset(head, 0, sizeof(MessageHead))
    if size > INT32_MAX:
        return False
    # A tag in a longer encoding than necessary is not decoded here: the tail begins with it.
    while at < end and is_head_tag(at[0]):
        at = read_head_field(at + 1, end, at[0], head)
        if at == NULL:
            return False
    head.tail = at
    head.tail_size = <uint32_t> (end - at)
    return True


cdef const uint8_t* read_tail_field(
    const uint8_t* at, const uint8_t* end, uint32_t tag, uint32_t tag_at, const uint8_t* start, TailView* tail
) noexcept nogil:
    # The value after a tag of fields 5 to 11.
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    cdef uint64_t number = 0
    cdef HeaderView header
    cdef int found
    if tag == PARTITION_TAG:
        at = read_number(at, end, &number)
        tail.partition = <int32_t> <uint32_t> number
        return at
    at = read_span(at, end, &data, &size)
    if at == NULL:
        return NULL
    if tag == HEADERS_TAG:
        found = read_entry(data, size, &header)
        if found < 0:
            return NULL
        if tail.headers_end == 0:
            tail.headers_at = tag_at
        if found and is_tombstone_header(header.name, header.name_size):
            tail.is_tombstone = True
        tail.headers_end = <uint32_t> (at - start)
        return at
    if not is_utf8(data, size):
        return NULL
    if tag == STREAM_TAG:
        tail.stream_at = <uint32_t> (data - start)
        tail.stream_size = size
    elif tag == SUBJECT_TAG:
        tail.subject_at = <uint32_t> (data - start)
        tail.subject_size = size
    elif tag == REPLY_TAG:
        tail.reply_at = <uint32_t> (data - start)
        tail.reply_size = size
    return at


cdef int read_tail(MessageHead* head, TailView* tail) noexcept nogil:
    cdef const uint8_t* start = head.tail
    cdef const uint8_t* at = start
    cdef const uint8_t* end = start + head.tail_size
    cdef uint32_t tag = 0
    cdef uint32_t tag_at
    cdef int outcome = TAIL_GOOD
    memset(tail, 0, sizeof(TailView))
    tail.size = head.tail_size
    while at < end:
        tag_at = <uint32_t> (at - start)
        at = read_tag(at, end, &tag)
        if at == NULL or tag < 8 or tag & 7 == WIRE_GROUP_END:
            return TAIL_BROKEN
        if is_head_tag(tag):
            outcome = TAIL_HAS_HEAD_FIELDS
            at = read_head_field(at, end, tag, head)
        elif tag == PARTITION_TAG or (tag & 7 == WIRE_BYTES and STREAM_TAG <= tag <= CORRELATION_ID_TAG and tag >> 3 != 6):
            at = read_tail_field(at, end, tag, tag_at, start, tail)
        else:
            at = skip_field(at, end, tag, GROUP_DEPTH_MAX)
        if at == NULL:
            return TAIL_BROKEN
    return outcome


cdef bint is_empty_message(MessageHead* head, TailView* tail) noexcept nogil:
    # A server's first message: all fields empty.
    return (
        head.offset == 0 and head.timestamp == 0 and head.key_size == 0 and head.value_size == 0
        and tail.stream_size == 0 and tail.subject_size == 0 and tail.partition == 0
    )


cdef inline bint is_servers(HeaderView* header) noexcept nogil:
    # Servers add these two, which are the fields `subject` and `reply` again.
    return (header.name_size == 7 and memcmp(header.name, b"subject", 7) == 0) or (
        header.name_size == 5 and memcmp(header.name, b"reply", 5) == 0
    )


# ── single messages ──────────────────────────────────────────────────────────────────────────────


cdef inline str text(bytes source, uint32_t at, uint32_t size):
    # It was checked when it was read.
    return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(source) + at, size, NULL)


@cython.final
@cython.no_gc
cdef class Origin:
    cdef str stream(self):
        if self.stream_text is None:
            self.stream_text = text(self.tail, self.view.stream_at, self.view.stream_size)
        return self.stream_text

    cdef str subject(self):
        if self.subject_text is None:
            self.subject_text = text(self.tail, self.view.subject_at, self.view.subject_size)
        return self.subject_text

    cdef str reply(self):
        if self.reply_text is None:
            self.reply_text = text(self.tail, self.view.reply_at, self.view.reply_size)
        return self.reply_text

    cdef dict headers(self, bint has_value):
        # A publisher's headers. Without a value the header that says so is left out.
        cdef dict result = {}
        cdef const uint8_t* start
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* data = NULL
        cdef uint32_t size = 0, tag = 0
        cdef HeaderView header
        if self.tail is None:
            return dict(self.given_headers)
        start = <const uint8_t*> PyBytes_AS_STRING(self.tail)
        at = start + self.view.headers_at
        end = start + self.view.headers_end
        while at < end:
            at = read_tag(at, end, &tag)
            if at != NULL and tag != HEADERS_TAG:
                at = skip_field(at, end, tag, GROUP_DEPTH_MAX)
            elif at != NULL:
                at = read_span(at, end, &data, &size)
            if at == NULL:
                raise AssertionError("headers were read and cannot be read again")
            if tag == HEADERS_TAG:
                if read_entry(data, size, &header) <= 0 or is_servers(&header):
                    continue
                if has_value or not is_tombstone_header(header.name, header.name_size):
                    result[PyUnicode_DecodeUTF8(<const char*> header.name, header.name_size, NULL)] = (
                        PyBytes_FromStringAndSize(<const char*> header.value, header.value_size)
                    )
        return result


cdef Origin origin_from(const uint8_t* tail, TailView* view):
    cdef Origin origin = Origin.__new__(Origin)
    origin.tail = PyBytes_FromStringAndSize(<const char*> tail, view.size)
    origin.view = view[0]
    return origin


cdef Origin NOWHERE = Origin.__new__(Origin)
NOWHERE.stream_text = NOWHERE.subject_text = NOWHERE.reply_text = ""
NOWHERE.given_headers = {}


@cython.final
@cython.no_gc
cdef class Message:
    def __cinit__(self):
        self.origin = NOWHERE

    def __init__(
        self, int64_t offset=0, bytes value=b"", *, bytes key=None, int64_t timestamp=0, str stream not None="",
        int32_t partition=0, str subject not None="", str reply not None="", dict headers=None,
    ):
        cdef Origin origin = Origin.__new__(Origin)
        origin.stream_text = stream
        origin.subject_text = subject
        origin.reply_text = reply
        origin.view.partition = partition
        origin.given_headers = {} if headers is None else dict(headers)
        self.offset = offset
        self.timestamp = timestamp
        self.key = key or None
        self.value = value
        self.origin = origin
        self.own_headers = None

    @property
    def stream(self):
        return self.origin.stream()

    @property
    def partition(self):
        return self.origin.view.partition

    @property
    def subject(self):
        return self.origin.subject()

    @property
    def reply(self):
        return self.origin.reply()

    @property
    def headers(self):
        if self.own_headers is None:
            self.own_headers = self.origin.headers(self.value is not None)
        return self.own_headers

    def __eq__(self, other):
        cdef Message that
        if not isinstance(other, Message):
            return NotImplemented
        that = other
        return (
            self.offset == that.offset and self.timestamp == that.timestamp and self.key == that.key and self.value == that.value
            and self.partition == that.partition and self.stream == that.stream and self.subject == that.subject
            and self.reply == that.reply and self.headers == that.headers
        )

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __repr__(self):
        return (
            f"Message(offset={self.offset}, value={self.value!r}, key={self.key!r}, timestamp={self.timestamp}, "
            f"stream={self.stream!r}, partition={self.partition}, subject={self.subject!r}, reply={self.reply!r}, "
            f"headers={self.headers!r})"
        )

    def __reduce__(self):
        return rebuilt, (
            self.offset, self.value, self.key, self.timestamp, self.stream, self.partition, self.subject, self.reply, self.headers,
        )


def rebuilt(offset, value, key, timestamp, stream, partition, subject, reply, headers):
    # what pickle calls
    return Message(
        offset, value, key=key, timestamp=timestamp, stream=stream, partition=partition, subject=subject, reply=reply, headers=headers,
    )


cdef inline bytes copied(const uint8_t* data, size_t size):
    return PyBytes_FromStringAndSize(<const char*> data, size)


cdef bint has_headers(dict given, dict wanted) except -1:
    for name, value in wanted.items():
        if name not in given or (value is not None and given[name] != value):
            return False
    return True


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


cdef inline int64_t number_at(Column column, Py_ssize_t index) noexcept:
    return (<const int64_t*> column.data)[index]


cdef inline int put(Column column, const void* data, size_t size) except -1:
    if column.reserve(size):
        raise MemoryError("no memory for messages")
    if size:
        memcpy(column.data + column.size, data, size)
    column.size += size
    return 0


cdef inline int put_number(Column column, int64_t number) except -1:
    if column.add_number(number):
        raise MemoryError("no memory for messages")
    return 0


cdef MessageBatch new_batch(size_t bytes_expected, size_t messages_expected):
    return MessageBatch.__new__(MessageBatch, bytes_expected, messages_expected)


@cython.final
cdef class MessageBatch:
    def __cinit__(self, size_t bytes_expected=0, size_t messages_expected=0):
        cdef size_t numbers = 8 * messages_expected + 8
        self.offset_column = new_column(b"q", numbers)
        self.timestamp_column = new_column(b"q", numbers)
        self.value_column = new_column(b"B", bytes_expected)
        self.value_end_column = new_column(b"q", numbers)
        self.key_column = new_column(b"B", 0)
        self.key_end_column = new_column(b"q", numbers)
        self.origin_column = new_column(b"i", numbers // 2)
        self.tail_column = new_column(b"B", 0)
        self.view_column = new_column(b"B", 0)
        self.tail_at_column = new_column(b"q", 0)
        put_number(self.value_end_column, 0)
        put_number(self.key_end_column, 0)

    cdef int add(self, const uint8_t* data, size_t size) except -1:
        cdef MessageHead head
        cdef TailView view
        cdef TailView* last
        cdef int outcome
        if not read_head(data, size, &head):
            return 1
        if self.last_tail_usable:
            last = (<TailView*> self.view_column.data) + (self.tails - 1)
            if last.size == head.tail_size and memcmp(
                self.tail_column.data + (self.tail_column.size - last.size), head.tail, last.size
            ) == 0:
                return self.add_head(&head)
        outcome = read_tail(&head, &view)
        if outcome == TAIL_BROKEN:
            return 1
        self.add_tail(&head, &view)
        self.add_head(&head)
        self.last_tail_usable = outcome == TAIL_GOOD
        return 0

    cdef int add_tail(self, MessageHead* head, TailView* view) except -1:
        if self.tails == INT32_MAX:
            raise MemoryError("more messages than a batch can have")
        # Until the number of tails is raised, a batch without memory for the rest has none of this.
        self.last_tail_usable = False
        put_number(self.tail_at_column, <int64_t> self.tail_column.size)
        put(self.view_column, view, sizeof(TailView))
        put(self.tail_column, head.tail, head.tail_size)
        self.tails += 1
        return 0

    cdef int add_head(self, MessageHead* head) except -1:
        cdef int32_t origin = self.tails - 1
        if head.value_size:
            put(self.value_column, head.value, head.value_size)
        if head.key_size:
            put(self.key_column, head.key, head.key_size)
        put_number(self.offset_column, head.offset)
        put_number(self.timestamp_column, head.timestamp)
        put_number(self.value_end_column, <int64_t> self.value_column.size)
        put_number(self.key_end_column, <int64_t> self.key_column.size)
        put(self.origin_column, &origin, 4)
        self.count += 1
        return 0

    cdef size_t bytes_used(self) noexcept:
        return (
            self.value_column.size + self.key_column.size + self.tail_column.size + self.view_column.size
            + self.tail_at_column.size + 36 * <size_t> self.count
        )

    cdef void complete(self) noexcept:
        cdef Column column
        # a message that failed for lack of memory may have left parts in the columns
        cdef size_t numbers = 8 * <size_t> self.count
        self.offset_column.size = self.timestamp_column.size = numbers
        self.value_end_column.size = self.key_end_column.size = numbers + 8
        self.origin_column.size = numbers // 2
        self.value_column.size = number_at(self.value_end_column, self.count)
        self.key_column.size = number_at(self.key_end_column, self.count)
        for column in (
            self.offset_column, self.timestamp_column, self.value_column, self.value_end_column, self.key_column,
            self.key_end_column, self.origin_column, self.tail_column, self.view_column, self.tail_at_column,
        ):
            column.shrink()

    cdef Origin origin_of(self, Py_ssize_t index):
        cdef int32_t which = (<const int32_t*> self.origin_column.data)[index]
        cdef Origin origin
        if self.origins is None:
            self.origins = [None] * self.tails
        origin = self.origins[which]
        if origin is None:
            origin = origin_from(
                self.tail_column.data + number_at(self.tail_at_column, which), (<TailView*> self.view_column.data) + which,
            )
            self.origins[which] = origin
        return origin

    cdef bint is_tombstone(self, Py_ssize_t index) noexcept:
        cdef int32_t which = (<const int32_t*> self.origin_column.data)[index]
        return (<TailView*> self.view_column.data)[which].is_tombstone

    cdef bytes value_at(self, Py_ssize_t index):
        cdef int64_t start = number_at(self.value_end_column, index)
        cdef int64_t end = number_at(self.value_end_column, index + 1)
        if start == end and self.is_tombstone(index):
            return None
        return copied(self.value_column.data + start, end - start)

    cdef bytes key_at(self, Py_ssize_t index):
        cdef int64_t start = number_at(self.key_end_column, index)
        cdef int64_t end = number_at(self.key_end_column, index + 1)
        return copied(self.key_column.data + start, end - start) if end > start else None

    cdef Message message_at(self, Py_ssize_t index):
        cdef Message message = Message.__new__(Message)
        message.offset = number_at(self.offset_column, index)
        message.timestamp = number_at(self.timestamp_column, index)
        message.key = self.key_at(index)
        message.value = self.value_at(index)
        message.origin = self.origin_of(index)
        return message

    cdef int add_row(self, MessageBatch source, Py_ssize_t index, bint same_tail) except -1:
        cdef MessageHead head
        cdef TailView view
        cdef int32_t which = (<const int32_t*> source.origin_column.data)[index]
        cdef int64_t value_at = number_at(source.value_end_column, index)
        cdef int64_t key_at = number_at(source.key_end_column, index)
        head.offset = number_at(source.offset_column, index)
        head.timestamp = number_at(source.timestamp_column, index)
        head.value = source.value_column.data + value_at
        head.value_size = <uint32_t> (number_at(source.value_end_column, index + 1) - value_at)
        head.key = source.key_column.data + key_at
        head.key_size = <uint32_t> (number_at(source.key_end_column, index + 1) - key_at)
        if not same_tail:
            view = (<TailView*> source.view_column.data)[which]
            head.tail = source.tail_column.data + number_at(source.tail_at_column, which)
            head.tail_size = view.size
            self.add_tail(&head, &view)
        return self.add_head(&head)

    def matching(self, bytes key=None, headers=None):
        cdef MessageBatch found = new_batch(0, 0)
        cdef Py_ssize_t index, last = -1
        cdef const int32_t* origins = <const int32_t*> self.origin_column.data
        for index in range(self.count):
            if key is not None and self.key_at(index) != key:
                continue
            if headers is not None and not has_headers(self.headers(index), headers):
                continue
            found.add_row(self, index, last >= 0 and origins[last] == origins[index])
            last = index
        if found.count == self.count:
            return self
        found.complete()
        return found

    cdef Py_ssize_t checked(self, Py_ssize_t index) except -1:
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"a batch of {self.count} messages has none with this index")
        return index

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t index):
        return self.message_at(self.checked(index))

    def __iter__(self):
        return iter(self.messages())

    def messages(self):
        cdef Py_ssize_t index
        return [self.message_at(index) for index in range(self.count)]

    def values(self):
        cdef Py_ssize_t index
        return [self.value_at(index) for index in range(self.count)]

    def keys(self):
        cdef Py_ssize_t index
        return [self.key_at(index) for index in range(self.count)]

    def value(self, Py_ssize_t index):
        return self.value_at(self.checked(index))

    def key(self, Py_ssize_t index):
        return self.key_at(self.checked(index))

    def subject(self, Py_ssize_t index):
        return self.origin_of(self.checked(index)).subject()

    def reply(self, Py_ssize_t index):
        return self.origin_of(self.checked(index)).reply()

    def headers(self, Py_ssize_t index):
        index = self.checked(index)
        return self.origin_of(index).headers(self.value_at(index) is not None)

    @property
    def stream(self):
        return self.origin_of(0).stream() if self.count else ""

    @property
    def partition(self):
        return self.origin_of(0).view.partition if self.count else 0

    @property
    def first_offset(self):
        return number_at(self.offset_column, 0) if self.count else -1

    @property
    def last_offset(self):
        return number_at(self.offset_column, self.count - 1) if self.count else -1

    @property
    def nbytes(self):
        return self.bytes_used()

    @property
    def offsets(self):
        return memoryview(self.offset_column)

    @property
    def timestamps(self):
        return memoryview(self.timestamp_column)

    @property
    def value_bytes(self):
        return memoryview(self.value_column)

    @property
    def value_offsets(self):
        return memoryview(self.value_end_column)

    @property
    def value_ends(self):
        return memoryview(self.value_end_column)[1:]

    @property
    def key_bytes(self):
        return memoryview(self.key_column)

    @property
    def key_offsets(self):
        return memoryview(self.key_end_column)

    @property
    def key_ends(self):
        return memoryview(self.key_end_column)[1:]


# ── for Python ───────────────────────────────────────────────────────────────────────────────────


def decode_message(data):
    cdef Bytes source = Bytes(data)
    cdef MessageHead head
    cdef TailView view
    cdef Message message
    if not read_head(source.data, source.size, &head) or read_tail(&head, &view) == TAIL_BROKEN:
        raise ValueError("a message is not protobuf")
    message = Message.__new__(Message)
    message.offset = head.offset
    message.timestamp = head.timestamp
    message.key = copied(head.key, head.key_size) if head.key_size else None
    message.value = copied(head.value, head.value_size) if head.value_size or not view.is_tombstone else None
    message.origin = origin_from(head.tail, &view)
    return message


def decode_batch(messages):
    cdef MessageBatch batch = new_batch(0, 0)
    cdef Bytes source
    for data in messages:
        source = Bytes(data)
        if batch.add(source.data, source.size):
            raise ValueError(f"message {batch.count} is not protobuf")
    batch.complete()
    return batch
