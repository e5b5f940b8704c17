# From record batches to the messages of a Subscribe stream: each record becomes a Message with gRPC's five bytes in front.
#
#   Message   1 offset · 2 key · 3 value · 4 timestamp · 5 stream · 6 partition · 7 subject · 8 replySubject · 9 headers
#
# The fields that all records of one subject share are encoded once: 5 to 7, the header `subject`, and the header `reply` of a message
# without one. Most records are four fields and a copy of these. A record without a value gets the header `bascule-tombstone`.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from bascule.kernels.envelope.messages cimport TOMBSTONE_HEADER_SIZE
from bascule.kernels.records.records cimport HAS_VALUE, BatchView, open_body, read_record, view_batch
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.numbers cimport read_bytes, varint_size
from bascule.kernels.wire.protobuf cimport (
    bytes_field_size, number_field_size, write_bytes_field, write_length, write_number_field,
)
from bascule.kernels.wire.utf8 cimport text_size, write_text

ALL_DONE = DELIVERED_ALL
BUDGET_USED = DELIVERED_BUDGET
END_REACHED = DELIVERED_END
DAMAGED = DELIVERED_DAMAGED

cdef enum:
    PREFIX_SIZE = 5                 # gRPC: not compressed, length u32 big-endian
    EMPTY_REPLY_SIZE = 11           # the header `reply` with no value
    TOMBSTONE_SIZE = 24             # the header `bascule-tombstone`

cdef const uint8_t* SUBJECT = <const uint8_t*> b"subject"
cdef const uint8_t* REPLY = <const uint8_t*> b"reply"
cdef const uint8_t* TOMBSTONE = <const uint8_t*> b"bascule-tombstone"


cdef inline size_t header_size(size_t name_size, size_t value_size) noexcept nogil:
    # A map entry without the tag and length in front; name and value are written even when they are empty.
    return 2 + varint_size(name_size) + name_size + varint_size(value_size) + value_size


cdef inline uint8_t* write_header(
    uint8_t* out, const uint8_t* name, uint32_t name_size, size_t name_written,
    const uint8_t* value, uint32_t value_size
) noexcept nogil:
    out = write_length(out, 9, header_size(name_written, value_size))
    out = write_length(out, 1, name_written)
    out = write_text(out, name, name_size, name_written)
    out = write_length(out, 2, value_size)
    if value_size:
        memcpy(out, value, value_size)
    return out + value_size


cdef inline bint is_ours(const uint8_t* name, uint32_t size) noexcept nogil:
    # The server sets these two; a publisher's are replaced.
    return (size == 7 and memcmp(name, SUBJECT, 7) == 0) or (size == 5 and memcmp(name, REPLY, 5) == 0)


cdef size_t user_headers_size(RecordView* record) noexcept nogil:
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* end = at + record.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef uint32_t name_size = 0, value_size = 0, index
    cdef size_t entry, total = 0
    for index in range(record.header_count):
        at = read_bytes(at, end, &name, &name_size)
        at = read_bytes(at, end, &value, &value_size) if at != NULL else NULL
        if at == NULL:
            break
        if not is_ours(name, name_size):
            entry = header_size(text_size(name, name_size), value_size)
            total += 1 + varint_size(entry) + entry
    return total


cdef uint8_t* write_user_headers(uint8_t* out, RecordView* record) noexcept nogil:
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* end = at + record.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef uint32_t name_size = 0, value_size = 0, index
    for index in range(record.header_count):
        at = read_bytes(at, end, &name, &name_size)
        at = read_bytes(at, end, &value, &value_size) if at != NULL else NULL
        if at == NULL:
            break
        if not is_ours(name, name_size):
            out = write_header(out, name, name_size, text_size(name, name_size), value, value_size)
    return out


cdef uint8_t* grown(uint8_t* memory, size_t* capacity, size_t wanted) noexcept nogil:
    cdef uint8_t* larger
    if memory != NULL and wanted <= capacity[0]:
        return memory
    larger = <uint8_t*> realloc(memory, wanted + 64)
    if larger != NULL:
        capacity[0] = wanted + 64
    return larger



cdef class Cursor:
    # A DeliveryCursor for Python.
    cdef DeliveryCursor position

    def __init__(self, int64_t next_offset=0, size_t batch_at=0):
        self.position.next_offset = next_offset
        self.position.batch_at = batch_at
        self.position.last_offset = -1

    @property
    def batch_at(self):
        return self.position.batch_at

    @property
    def next_offset(self):
        return self.position.next_offset

    @property
    def last_offset(self):
        return self.position.last_offset

    @property
    def messages(self):
        return self.position.messages

    @property
    def nbytes(self):
        return self.position.bytes


cdef class Delivery:
    def __cinit__(self, bytes stream not None, int32_t partition):
        self.stream = stream
        self.stream_data = <const uint8_t*> PyBytes_AS_STRING(stream)
        self.stream_size = PyBytes_GET_SIZE(stream)
        self.partition = partition

    def __dealloc__(self):
        free(self.tail)
        free(self.subject)

    cdef int prepare_tail(self, const uint8_t* subject, uint32_t subject_size) noexcept nogil:
        cdef size_t text = text_size(subject, subject_size)
        # the value of the header is bytes: the subject as it is
        cdef size_t entry = header_size(7, subject_size)
        cdef size_t wanted = (
            bytes_field_size(self.stream_size) + number_field_size(self.partition) + bytes_field_size(text)
            + 1 + varint_size(entry) + entry + <size_t> EMPTY_REPLY_SIZE
        )
        cdef uint8_t* out
        self.has_tail = False
        out = grown(self.subject, &self.subject_capacity, subject_size)
        if out == NULL:
            return -1
        self.subject = out
        out = grown(self.tail, &self.tail_capacity, wanted)
        if out == NULL:
            return -1
        self.tail = out
        if subject_size:
            memcpy(self.subject, subject, subject_size)
        self.subject_size = subject_size
        out = write_bytes_field(out, 5, self.stream_data, self.stream_size)
        out = write_number_field(out, 6, self.partition)
        if text:
            out = write_text(write_length(out, 7, text), subject, subject_size, text)
        out = write_header(out, SUBJECT, 7, 7, subject, subject_size)
        out = write_header(out, REPLY, 5, 5, NULL, 0)
        self.tail_size = out - self.tail
        self.has_tail = True
        return 0

    cdef int append_message(self, OutputBuffer output, RecordView* record) noexcept nogil:
        cdef size_t size, tail_size, reply_text = 0
        cdef uint8_t* out
        if not (
            self.has_tail and record.subject_size == self.subject_size
            and memcmp(record.subject, self.subject, record.subject_size) == 0
        ):
            if self.prepare_tail(record.subject, record.subject_size):
                return -1
        tail_size = self.tail_size
        size = (
            number_field_size(record.offset) + bytes_field_size(record.key_size) + bytes_field_size(record.value_size)
            + number_field_size(record.timestamp)
        )
        if record.reply_size:
            tail_size -= EMPTY_REPLY_SIZE
            reply_text = text_size(record.reply, record.reply_size)
            size += bytes_field_size(reply_text) + bytes_field_size(header_size(5, record.reply_size))
        if record.header_count:
            size += user_headers_size(record)
        if not record.flags & HAS_VALUE:
            size += TOMBSTONE_SIZE
        size += tail_size
        if size > INT32_MAX:
            return -1
        out = output.reserve(PREFIX_SIZE + size)
        if out == NULL:
            return -1
        out[0] = 0
        out[1] = <uint8_t> (size >> 24)
        out[2] = <uint8_t> (size >> 16)
        out[3] = <uint8_t> (size >> 8)
        out[4] = <uint8_t> size
        out = write_number_field(out + PREFIX_SIZE, 1, record.offset)
        out = write_bytes_field(out, 2, record.key, record.key_size)
        out = write_bytes_field(out, 3, record.value, record.value_size)
        out = write_number_field(out, 4, record.timestamp)
        memcpy(out, self.tail, tail_size)
        out += tail_size
        if record.reply_size:
            out = write_text(write_length(out, 8, reply_text), record.reply, record.reply_size, reply_text)
            out = write_header(out, REPLY, 5, 5, record.reply, record.reply_size)
        if record.header_count:
            out = write_user_headers(out, record)
        if not record.flags & HAS_VALUE:
            write_header(out, TOMBSTONE, TOMBSTONE_HEADER_SIZE, TOMBSTONE_HEADER_SIZE, <const uint8_t*> b"1", 1)
        output.commit(PREFIX_SIZE + size)
        return 0

    cdef int deliver(
        self, OutputBuffer output, const uint8_t* data, size_t size, DeliveryCursor* cursor, int64_t end_offset, size_t budget
    ) noexcept nogil:
        cdef BatchView batch
        cdef size_t stop = output.size() + budget
        cdef int outcome
        if cursor.batch_at > size:
            return DELIVERED_DAMAGED
        while cursor.batch_at < size:
            if view_batch(data + cursor.batch_at, data + size, &batch, False):
                return DELIVERED_DAMAGED
            if batch.last_offset >= cursor.next_offset:
                if batch.base_offset >= end_offset:
                    return DELIVERED_END
                outcome = self.deliver_batch(output, data, &batch, cursor, end_offset, stop)
                if outcome != DELIVERED_ALL:
                    return outcome
                # skip the offsets that compaction removed from the end of the batch
                cursor.next_offset = batch.last_offset + 1
            cursor.batch_at += batch.length
            cursor.record_at = 0
            cursor.record_index = 0
        return DELIVERED_ALL

    cdef int deliver_batch(
        self, OutputBuffer output, const uint8_t* data, BatchView* batch, DeliveryCursor* cursor, int64_t end_offset, size_t stop
    ) noexcept nogil:
        cdef RecordView record
        cdef const uint8_t* at = open_body(batch)
        cdef const uint8_t* behind
        cdef size_t before
        if at == NULL:
            return DELIVERED_DAMAGED
        if cursor.record_at:
            if cursor.record_at < <size_t> (at - data) or cursor.record_at > <size_t> (batch.end - data):
                return DELIVERED_DAMAGED
            at = data + cursor.record_at
        while cursor.record_index < batch.count:
            cursor.record_at = at - data
            behind = read_record(at, batch, &record)
            if behind == NULL:
                return DELIVERED_DAMAGED
            if record.offset >= end_offset:
                return DELIVERED_END
            if record.offset >= cursor.next_offset:
                before = output.size()
                if before >= stop:
                    return DELIVERED_BUDGET
                if self.append_message(output, &record):
                    return DELIVERED_NO_MEMORY
                cursor.next_offset = record.offset + 1
                cursor.last_offset = record.offset
                cursor.messages += 1
                cursor.bytes += output.size() - before
            at = behind
            cursor.record_index += 1
        return DELIVERED_ALL

    def write(self, OutputBuffer output not None, data, Cursor cursor not None, int64_t end_offset, size_t budget):
        cdef Bytes source = Bytes(data)
        cdef int outcome
        with nogil:
            outcome = self.deliver(output, source.data, source.size, &cursor.position, end_offset, budget)
        if outcome == DELIVERED_NO_MEMORY:
            raise MemoryError("no memory for messages, or the output buffer is being looked at")
        return outcome
