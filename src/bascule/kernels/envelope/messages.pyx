# The hot protobuf messages: requests to publish, the publish envelope, acks, answers to publishers.
#
# A message is a table of fields: which number carries what. One loop reads all of them; numbers that are not in the table, and
# known numbers with a wire type that is not theirs, are unknown fields and skipped, as protobuf parsers do.
#
#   envelope   B9 0E 43 B4 · version 0 · header size u8 · flags u8 · type u8 · [crc32c u32 when flags & 1] · protobuf
#   header     map entry: 1 name string · 2 value bytes

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

from bascule.kernels.wire.checksum cimport crc32c_of, crc32c_setup
from bascule.kernels.wire.numbers cimport varint_size, write_bytes
from bascule.kernels.wire.protobuf cimport (
    GROUP_DEPTH_MAX, WIRE_BYTES, WIRE_GROUP_END, WIRE_VARINT, bytes_field_size, number_field_size, read_number, read_span,
    read_tag, skip_field, write_bytes_field, write_length, write_number_field,
)
from bascule.kernels.wire.utf8 cimport is_utf8, text_size, write_text

crc32c_setup()

LEADER = ACK_LEADER
ALL = ACK_ALL
NONE = ACK_NONE
OK = ACK_OK
UNKNOWN_ERROR = ACK_UNKNOWN
INCORRECT_OFFSET = ACK_INCORRECT_OFFSET
TOO_LARGE = ACK_TOO_LARGE
ENCRYPTION = ACK_ENCRYPTION
NOT_STORED = ACK_NOT_STORED
INVALID_PRODUCER = ACK_INVALID_PRODUCER
PRODUCER_FENCED = ACK_PRODUCER_FENCED
OUT_OF_SEQUENCE = ACK_OUT_OF_SEQUENCE
DISK_FULL = ACK_DISK_FULL

cdef enum:
    FIELDS = 16                     # numbers in a table: 0 to 15, so that every tag is one byte
    ENVELOPE_HEADER_WITH_CRC_SIZE = 12
    ENVELOPE_HAS_CRC = 0x01
    PAIRWISE_MAX = 12               # so many headers are compared each with each; more are sorted
    DUPLICATE_FIELD = 1000          # of an ack
    DUPLICATE_BYTES = 3

cdef uint8_t[4] ENVELOPE_MAGIC = [0xB9, 0x0E, 0x43, 0xB4]
cdef uint8_t[3] DUPLICATE = [0xC0, 0x3E, 0x01]     # Ack.duplicate = true, tag and all

cdef enum:
    UNKNOWN = 0
    BYTES
    TEXT
    NUMBER
    HEADERS

# Where a field goes. Spans first, then numbers.
cdef enum:
    STREAM
    INBOX
    CORRELATION_ID
    KEY
    VALUE
    SUBJECT
    UNUSED                          # checked, as every string is, and ignored
    SPANS
    OFFSET = 0
    PARTITION
    POLICY
    RECEPTION_TIMESTAMP
    COMMIT_TIMESTAMP
    ERROR
    UNUSED_NUMBER
    NUMBERS

cdef struct Table:
    uint8_t kind[FIELDS]
    uint8_t slot[FIELDS]
    uint32_t flag_field             # a number beyond the table, 0 for none

cdef struct Fields:
    const uint8_t* data[SPANS]
    uint32_t size[SPANS]
    int64_t number[NUMBERS]
    const uint8_t* headers
    const uint8_t* headers_end
    uint32_t header_entries
    size_t headers_size
    uint64_t flag

cdef Table PUBLISH_REQUEST, PUBLISH_TO_SUBJECT, MESSAGE, ACK


cdef Table table(dict fields):
    cdef Table result
    memset(&result, 0, sizeof(Table))
    for number, (kind, slot) in fields.items():
        result.kind[<int> number] = kind
        result.slot[<int> number] = slot
    return result


PUBLISH_REQUEST = table({
    1: (BYTES, KEY), 2: (BYTES, VALUE), 3: (TEXT, STREAM), 4: (NUMBER, PARTITION), 5: (HEADERS, 0), 6: (TEXT, INBOX),
    7: (TEXT, CORRELATION_ID), 8: (NUMBER, POLICY), 9: (NUMBER, OFFSET),
})
PUBLISH_TO_SUBJECT = table({
    1: (BYTES, KEY), 2: (BYTES, VALUE), 3: (TEXT, SUBJECT), 4: (HEADERS, 0), 5: (TEXT, INBOX), 6: (TEXT, CORRELATION_ID),
    7: (NUMBER, POLICY),
})
MESSAGE = table({
    1: (NUMBER, OFFSET), 2: (BYTES, KEY), 3: (BYTES, VALUE), 4: (NUMBER, UNUSED_NUMBER), 5: (TEXT, STREAM), 6: (NUMBER, PARTITION),
    7: (TEXT, UNUSED), 8: (TEXT, UNUSED), 9: (HEADERS, 0), 10: (TEXT, INBOX), 11: (TEXT, CORRELATION_ID), 12: (NUMBER, POLICY),
})
# Of an ack KEY is the partition's subject and SUBJECT the message's.
ACK = table({
    1: (TEXT, STREAM), 2: (TEXT, KEY), 3: (TEXT, SUBJECT), 4: (NUMBER, OFFSET), 5: (TEXT, INBOX), 6: (TEXT, CORRELATION_ID),
    7: (NUMBER, POLICY), 8: (NUMBER, RECEPTION_TIMESTAMP), 9: (NUMBER, COMMIT_TIMESTAMP), 10: (NUMBER, ERROR),
})
ACK.flag_field = DUPLICATE_FIELD


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


cdef int read_entry(const uint8_t* at, uint32_t size, HeaderView* header) noexcept nogil:
    # 1: a header; 0: an entry with unknown fields, which upb does not take for one; −1: not protobuf.
    cdef const uint8_t* end = at + size
    cdef uint32_t tag = 0
    cdef int known = 1
    header.name = header.value = at
    header.name_size = header.value_size = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            return -1
        if tag == (1 << 3 | WIRE_BYTES):
            at = read_span(at, end, &header.name, &header.name_size)
            if at == NULL or not is_utf8(header.name, header.name_size):
                return -1
        elif tag == (2 << 3 | WIRE_BYTES):
            at = read_span(at, end, &header.value, &header.value_size)
            if at == NULL:
                return -1
        else:
            known = 0
            if tag < 8 or tag & 7 == WIRE_GROUP_END:
                return -1
            at = skip_field(at, end, tag, GROUP_DEPTH_MAX - 1)
            if at == NULL:
                return -1
    return known


cdef const uint8_t* read_known(
    const uint8_t* at, const uint8_t* end, uint8_t kind, uint8_t slot, const uint8_t* tag_at, Fields* fields
) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    cdef uint64_t number = 0
    cdef HeaderView header
    if kind == NUMBER:
        at = read_number(at, end, &number)
        fields.number[slot] = <int64_t> number
        return at
    at = read_span(at, end, &data, &size)
    if at == NULL:
        return NULL
    if kind == HEADERS:
        if read_entry(data, size, &header) < 0:
            return NULL
        if fields.headers == NULL:
            fields.headers = tag_at
        fields.headers_end = at
        fields.header_entries += 1
        fields.headers_size += 1 + varint_size(size) + size
        return at
    if kind == TEXT and not is_utf8(data, size):
        return NULL
    fields.data[slot] = data
    fields.size[slot] = size
    return at


cdef bint read_fields(const uint8_t* at, size_t size, const Table* known, Fields* fields) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef const uint8_t* tag_at
    cdef uint32_t tag = 0
    cdef uint32_t field
    cdef uint8_t kind
    memset(fields, 0, sizeof(Fields))
    if size > 0x7FFFFFFF:
        return False
    while at < end:
        tag_at = at
        at = read_tag(at, end, &tag)
        if at == NULL or tag < 8 or tag & 7 == WIRE_GROUP_END:
            return False
        field = tag >> 3
        kind = known.kind[field] if field < FIELDS else <uint8_t> UNKNOWN
        if kind != UNKNOWN and tag & 7 == <uint32_t> (WIRE_VARINT if kind == NUMBER else WIRE_BYTES):
            at = read_known(at, end, kind, known.slot[field], tag_at, fields)
        elif tag == (known.flag_field << 3 | WIRE_VARINT):
            at = read_number(at, end, &fields.flag)
        else:
            at = skip_field(at, end, tag, GROUP_DEPTH_MAX)
        if at == NULL:
            return False
    return True


cdef bint read_publish(
    const uint8_t* data, size_t size, const Table* known, uint32_t headers_field, PublishView* view
) noexcept nogil:
    cdef Fields fields
    if not read_fields(data, size, known, &fields):
        return False
    view.key = fields.data[KEY]
    view.key_size = fields.size[KEY]
    view.has_key = fields.size[KEY] > 0
    view.value = fields.data[VALUE]
    view.value_size = fields.size[VALUE]
    view.stream = fields.data[STREAM]
    view.stream_size = fields.size[STREAM]
    view.subject = fields.data[SUBJECT]
    view.subject_size = fields.size[SUBJECT]
    view.ack_inbox = fields.data[INBOX]
    view.ack_inbox_size = fields.size[INBOX]
    view.correlation_id = fields.data[CORRELATION_ID]
    view.correlation_id_size = fields.size[CORRELATION_ID]
    view.headers = fields.headers
    view.headers_end = fields.headers_end
    view.header_entries = fields.header_entries
    view.headers_tag = headers_field << 3 | WIRE_BYTES
    view.headers_size = fields.headers_size
    # int32 and enums: of a longer number the low 32 bits count
    view.partition = <int32_t> <uint32_t> <uint64_t> fields.number[PARTITION]
    view.ack_policy = <int32_t> <uint32_t> <uint64_t> fields.number[POLICY]
    view.expected_offset = fields.number[OFFSET]
    return True


cdef bint read_publish_request(const uint8_t* data, size_t size, PublishView* view) noexcept nogil:
    return read_publish(data, size, &PUBLISH_REQUEST, 5, view)


cdef bint read_publish_to_subject(const uint8_t* data, size_t size, PublishView* view) noexcept nogil:
    return read_publish(data, size, &PUBLISH_TO_SUBJECT, 4, view)


cdef bint open_envelope(const uint8_t** data, size_t* size, uint8_t kind) noexcept nogil:
    # Moves from the envelope to what is in it.
    cdef const uint8_t* at = data[0]
    cdef size_t header
    cdef uint32_t crc
    if size[0] < ENVELOPE_HEADER_SIZE or memcmp(at, ENVELOPE_MAGIC, 4) != 0 or at[4] != 0 or at[7] != kind:
        return False
    header = at[5]
    if header < ENVELOPE_HEADER_SIZE or header > size[0]:
        return False
    if at[6] & ENVELOPE_HAS_CRC:
        if header != ENVELOPE_HEADER_WITH_CRC_SIZE:
            return False
        crc = <uint32_t> at[8] << 24 | <uint32_t> at[9] << 16 | <uint32_t> at[10] << 8 | at[11]
        if crc32c_of(at + header, size[0] - header, 0) != crc:
            return False
    data[0] = at + header
    size[0] -= header
    return True


cdef bint read_publish_envelope(const uint8_t* data, size_t size, PublishView* view) noexcept nogil:
    return open_envelope(&data, &size, ENVELOPE_PUBLISH) and read_publish(data, size, &MESSAGE, 9, view)


cdef bint read_ack(const uint8_t* data, size_t size, AckView* view) noexcept nogil:
    cdef Fields fields
    if not read_fields(data, size, &ACK, &fields):
        return False
    view.stream = fields.data[STREAM]
    view.stream_size = fields.size[STREAM]
    view.partition_subject = fields.data[KEY]
    view.partition_subject_size = fields.size[KEY]
    view.msg_subject = fields.data[SUBJECT]
    view.msg_subject_size = fields.size[SUBJECT]
    view.ack_inbox = fields.data[INBOX]
    view.ack_inbox_size = fields.size[INBOX]
    view.correlation_id = fields.data[CORRELATION_ID]
    view.correlation_id_size = fields.size[CORRELATION_ID]
    view.offset = fields.number[OFFSET]
    view.reception_timestamp = fields.number[RECEPTION_TIMESTAMP]
    view.commit_timestamp = fields.number[COMMIT_TIMESTAMP]
    view.ack_policy = <int32_t> <uint32_t> <uint64_t> fields.number[POLICY]
    view.error = <int32_t> <uint32_t> <uint64_t> fields.number[ERROR]
    view.duplicate = fields.flag != 0
    return True


cdef bint read_ack_envelope(const uint8_t* data, size_t size, AckView* view) noexcept nogil:
    return open_envelope(&data, &size, ENVELOPE_ACK) and read_ack(data, size, view)


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


cdef const uint8_t* next_entry(
    const uint8_t* at, PublishView* view, const uint8_t** data, uint32_t* size
) noexcept nogil:
    # The next map entry from `at` on and the position behind it; NULL when there is none left.
    cdef uint32_t tag = 0
    while at != NULL and at < view.headers_end:
        at = read_tag(at, view.headers_end, &tag)
        if at == NULL:
            return NULL
        if tag == view.headers_tag:
            return read_span(at, view.headers_end, data, size)
        at = skip_field(at, view.headers_end, tag, GROUP_DEPTH_MAX)
    return NULL


cdef Py_ssize_t collect_headers(PublishView* view, HeaderView* headers, size_t capacity) noexcept nogil:
    cdef const uint8_t* at = view.headers
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    cdef size_t count = 0
    if view.header_entries > capacity:
        return -1
    while True:
        at = next_entry(at, view, &data, &size)
        if at == NULL or count == capacity:
            break
        if read_entry(data, size, &headers[count]) > 0:
            count += 1
    return keep_last(headers, count)


cdef inline int compare_names(const HeaderView* one, const HeaderView* other) noexcept nogil:
    if one.name_size != other.name_size:
        return -1 if one.name_size < other.name_size else 1
    return memcmp(one.name, other.name, one.name_size)


ctypedef const HeaderView* HeaderPointer


cdef int compare_places(const void* one, const void* other) noexcept nogil:
    # By name; of one name the later place comes later.
    cdef const HeaderView* first = (<const HeaderPointer*> one)[0]
    cdef const HeaderView* second = (<const HeaderPointer*> other)[0]
    cdef int order = compare_names(first, second)
    if order:
        return order
    return -1 if first < second else 1


cdef Py_ssize_t keep_last(HeaderView* headers, size_t count) noexcept nogil:
    cdef bint replaced[HEADER_ENTRIES_MAX]
    cdef HeaderPointer places[HEADER_ENTRIES_MAX]
    cdef size_t index, other, kept = 0
    if count > HEADER_ENTRIES_MAX:
        return -1
    if count < 2:
        return <Py_ssize_t> count
    for index in range(count):
        replaced[index] = False
    if count <= PAIRWISE_MAX:
        for index in range(count):
            for other in range(index + 1, count):
                if compare_names(&headers[index], &headers[other]) == 0:
                    replaced[index] = True
                    break
    else:
        for index in range(count):
            places[index] = &headers[index]
        qsort(places, count, sizeof(HeaderPointer), compare_places)
        for index in range(count - 1):
            if compare_names(places[index], places[index + 1]) == 0:
                replaced[places[index] - headers] = True
    for index in range(count):
        if not replaced[index]:
            headers[kept] = headers[index]
            kept += 1
    return <Py_ssize_t> kept


cdef Py_ssize_t write_record_headers(PublishView* view, uint8_t* out, size_t capacity, uint32_t* count) noexcept nogil:
    cdef HeaderView headers[HEADER_ENTRIES_MAX]
    cdef Py_ssize_t found = collect_headers(view, headers, HEADER_ENTRIES_MAX)
    cdef Py_ssize_t index
    cdef size_t size = 0
    if found < 0:
        return -1
    for index in range(found):
        size += varint_size(headers[index].name_size) + headers[index].name_size
        size += varint_size(headers[index].value_size) + headers[index].value_size
    if size > capacity:
        return -1
    for index in range(found):
        out = write_bytes(out, headers[index].name, headers[index].name_size)
        out = write_bytes(out, headers[index].value, headers[index].value_size)
    count[0] = <uint32_t> found
    return <Py_ssize_t> size


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


cdef inline uint8_t* write_envelope_header(uint8_t* out, uint8_t kind) noexcept nogil:
    memcpy(out, ENVELOPE_MAGIC, 4)
    out[4] = 0
    out[5] = ENVELOPE_HEADER_SIZE
    out[6] = 0
    out[7] = kind
    return out + ENVELOPE_HEADER_SIZE


cdef size_t publish_envelope_size(PublishView* view, uint32_t inbox_size) noexcept nogil:
    return (
        <size_t> ENVELOPE_HEADER_SIZE
        + number_field_size(view.expected_offset)
        + bytes_field_size(view.key_size)
        + bytes_field_size(view.value_size)
        + view.headers_size
        + bytes_field_size(inbox_size)
        + bytes_field_size(view.correlation_id_size)
        + number_field_size(view.ack_policy)
    )


cdef uint8_t* write_publish_envelope(
    uint8_t* out, PublishView* view, const uint8_t* inbox, uint32_t inbox_size
) noexcept nogil:
    cdef const uint8_t* at = view.headers
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    out = write_envelope_header(out, ENVELOPE_PUBLISH)
    out = write_number_field(out, 1, view.expected_offset)
    out = write_bytes_field(out, 2, view.key, view.key_size)
    out = write_bytes_field(out, 3, view.value, view.value_size)
    # entries unchanged, repeated names too: the broker that stores the message keeps the last one
    while True:
        at = next_entry(at, view, &data, &size)
        if at == NULL:
            break
        out = write_length(out, 9, size)
        if size:
            memcpy(out, data, size)
        out += size
    out = write_bytes_field(out, 10, inbox, inbox_size)
    out = write_bytes_field(out, 11, view.correlation_id, view.correlation_id_size)
    return write_number_field(out, 12, view.ack_policy)


cdef size_t ack_size(AckView* ack) noexcept nogil:
    return (
        bytes_field_size(ack.stream_size)
        + bytes_field_size(ack.partition_subject_size)
        + bytes_field_size(text_size(ack.msg_subject, ack.msg_subject_size))
        + number_field_size(ack.offset)
        + bytes_field_size(ack.ack_inbox_size)
        + bytes_field_size(ack.correlation_id_size)
        + number_field_size(ack.ack_policy)
        + number_field_size(ack.reception_timestamp)
        + number_field_size(ack.commit_timestamp)
        + number_field_size(ack.error)
        + (DUPLICATE_BYTES if ack.duplicate else 0)
    )


cdef uint8_t* write_ack(uint8_t* out, AckView* ack) noexcept nogil:
    cdef size_t subject_size = text_size(ack.msg_subject, ack.msg_subject_size)
    out = write_bytes_field(out, 1, ack.stream, ack.stream_size)
    out = write_bytes_field(out, 2, ack.partition_subject, ack.partition_subject_size)
    if subject_size:
        out = write_length(out, 3, subject_size)
        out = write_text(out, ack.msg_subject, ack.msg_subject_size, subject_size)
    out = write_number_field(out, 4, ack.offset)
    out = write_bytes_field(out, 5, ack.ack_inbox, ack.ack_inbox_size)
    out = write_bytes_field(out, 6, ack.correlation_id, ack.correlation_id_size)
    out = write_number_field(out, 7, ack.ack_policy)
    out = write_number_field(out, 8, ack.reception_timestamp)
    out = write_number_field(out, 9, ack.commit_timestamp)
    out = write_number_field(out, 10, ack.error)
    if ack.duplicate:
        memcpy(out, DUPLICATE, DUPLICATE_BYTES)
        out += DUPLICATE_BYTES
    return out


cdef size_t ack_envelope_size(AckView* ack) noexcept nogil:
    return ENVELOPE_HEADER_SIZE + ack_size(ack)


cdef uint8_t* write_ack_envelope(uint8_t* out, AckView* ack) noexcept nogil:
    return write_ack(write_envelope_header(out, ENVELOPE_ACK), ack)


cdef size_t publish_response_size(AckView* ack, bint with_correlation_id) noexcept nogil:
    cdef size_t size = ack_size(ack)
    size += 1 + varint_size(size)
    return size + bytes_field_size(ack.correlation_id_size) if with_correlation_id else size


cdef uint8_t* write_publish_response(uint8_t* out, AckView* ack, bint with_correlation_id) noexcept nogil:
    out = write_ack(write_length(out, 1, ack_size(ack)), ack)
    if with_correlation_id:
        out = write_bytes_field(out, 3, ack.correlation_id, ack.correlation_id_size)
    return out


cdef inline size_t async_error_size(int32_t code, uint32_t message_size) noexcept nogil:
    return number_field_size(code) + bytes_field_size(message_size)


cdef size_t publish_error_size(int32_t code, uint32_t message_size, uint32_t correlation_id_size) noexcept nogil:
    cdef size_t error_size = async_error_size(code, message_size)
    return 2 + 1 + varint_size(error_size) + error_size + bytes_field_size(correlation_id_size)


cdef uint8_t* write_publish_error(
    uint8_t* out, int32_t code, const uint8_t* message, uint32_t message_size,
    const uint8_t* correlation_id, uint32_t correlation_id_size
) noexcept nogil:
    out = write_length(out, 1, 0)
    out = write_length(out, 2, async_error_size(code, message_size))
    out = write_number_field(out, 1, code)
    out = write_bytes_field(out, 2, message, message_size)
    return write_bytes_field(out, 3, correlation_id, correlation_id_size)
