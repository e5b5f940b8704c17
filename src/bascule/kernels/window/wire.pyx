# The codec of publish requests and responses.
#
#   PublishRequest    1 key · 2 value · 3 stream · 4 partition · 5 headers · 6 ackInbox · 7 correlationId · 8 ackPolicy
#                     9 expectedOffset
#   PublishResponse   1 ack · 2 asyncError {1 code · 2 message} · 3 correlationId

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from bascule.kernels.envelope.messages cimport AckView
from bascule.kernels.wire.numbers cimport varint_size
from bascule.kernels.wire.protobuf cimport (
    GROUP_DEPTH_MAX, WIRE_BYTES, WIRE_GROUP_END, WIRE_VARINT, bytes_field_size, number_field_size, read_number, read_span, read_tag,
    skip_field, write_bytes_field, write_length, write_number_field,
)
from bascule.kernels.wire.utf8 cimport is_utf8


cdef enum:
    ACK_DUPLICATE_FIELD = 1000


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


cdef const uint8_t* read_ack_text(const uint8_t* at, const uint8_t* end, uint32_t field, AckView* ack) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    at = read_span(at, end, &data, &size)
    if at == NULL or not is_utf8(data, size):
        return NULL
    if field == 1:
        ack.stream, ack.stream_size = data, size
    elif field == 2:
        ack.partition_subject, ack.partition_subject_size = data, size
    elif field == 3:
        ack.msg_subject, ack.msg_subject_size = data, size
    elif field == 5:
        ack.ack_inbox, ack.ack_inbox_size = data, size
    else:
        ack.correlation_id, ack.correlation_id_size = data, size
    return at


cdef const uint8_t* read_ack_number(const uint8_t* at, const uint8_t* end, uint32_t field, AckView* ack) noexcept nogil:
    cdef uint64_t number = 0
    at = read_number(at, end, &number)
    if field == 4:
        ack.offset = <int64_t> number
    elif field == 7:
        ack.ack_policy = <int32_t> <uint32_t> number
    elif field == 8:
        ack.reception_timestamp = <int64_t> number
    elif field == 9:
        ack.commit_timestamp = <int64_t> number
    elif field == ACK_DUPLICATE_FIELD:
        ack.duplicate = number != 0
    else:
        ack.error = <int32_t> <uint32_t> number
    return at


cdef bint merge_ack(const uint8_t* at, size_t size, int depth, AckView* ack) noexcept nogil:
    # Fields replace those in `ack`: protobuf merges all occurrences of a submessage in order.
    cdef const uint8_t* end = at + size
    cdef uint32_t tag = 0, field, kind
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL or tag < 8 or tag & 7 == WIRE_GROUP_END:
            return False
        field = tag >> 3
        kind = tag & 7
        if kind == WIRE_BYTES and (field <= 3 or field == 5 or field == 6):
            at = read_ack_text(at, end, field, ack)
        elif kind == WIRE_VARINT and (field == 4 or 7 <= field <= 10 or field == ACK_DUPLICATE_FIELD):
            at = read_ack_number(at, end, field, ack)
        else:
            at = skip_field(at, end, tag, depth)
        if at == NULL:
            return False
    return True


cdef bint merge_error(const uint8_t* at, size_t size, ResponseView* view) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL or tag < 8 or tag & 7 == WIRE_GROUP_END:
            return False
        if tag == (1 << 3 | WIRE_VARINT):
            at = read_number(at, end, &number)
            view.error_code = <int32_t> <uint32_t> number
        elif tag == (2 << 3 | WIRE_BYTES):
            at = read_span(at, end, &view.error_text, &view.error_text_size)
            if at == NULL or not is_utf8(view.error_text, view.error_text_size):
                return False
        else:
            at = skip_field(at, end, tag, GROUP_DEPTH_MAX - 1)
        if at == NULL:
            return False
    return True


cdef const uint8_t* read_response_field(const uint8_t* at, const uint8_t* end, uint32_t field, ResponseView* view) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef uint32_t size = 0
    at = read_span(at, end, &data, &size)
    if at == NULL:
        return NULL
    if field == 1:
        view.has_ack = True
        return at if merge_ack(data, size, GROUP_DEPTH_MAX - 1, &view.ack) else NULL
    if field == 2:
        view.has_error = True
        return at if merge_error(data, size, view) else NULL
    view.correlation_id, view.correlation_id_size = data, size
    return at if is_utf8(data, size) else NULL


cdef bint read_publish_response(const uint8_t* data, size_t size, ResponseView* view) noexcept nogil:
    cdef const uint8_t* at = data
    cdef const uint8_t* end = data + size
    cdef uint32_t tag = 0
    memset(view, 0, sizeof(ResponseView))
    if size > INT32_MAX:
        return False
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL or tag < 8 or tag & 7 == WIRE_GROUP_END:
            return False
        if tag & 7 == WIRE_BYTES and tag >> 3 <= 3:
            at = read_response_field(at, end, tag >> 3, view)
        else:
            at = skip_field(at, end, tag, GROUP_DEPTH_MAX)
        if at == NULL:
            return False
    return True


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


cdef bytes encode_headers(object headers, uint8_t field):
    # Map entries with their tags; name and value are written even when they are empty.
    cdef list parts = []
    cdef bytes name, value
    cdef bytes entry
    cdef uint8_t* out
    cdef size_t size
    for title, content in headers.items():
        name = (<str?> title).encode()
        value = content
        if PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) > INT32_MAX - 64:
            raise ValueError("a header has less than 2 GiB")
        size = 2 + varint_size(len(name)) + len(name) + varint_size(len(value)) + len(value)
        entry = PyBytes_FromStringAndSize(NULL, 1 + varint_size(size) + size)
        out = write_length(<uint8_t*> PyBytes_AS_STRING(entry), field, size)
        out = write_length(out, 1, len(name))
        memcpy(out, PyBytes_AS_STRING(name), len(name))
        out = write_length(out + len(name), 2, len(value))
        memcpy(out, PyBytes_AS_STRING(value), len(value))
        parts.append(entry)
    return b"".join(parts)


cdef size_t publish_request_size(
    size_t target_size, size_t key_size, size_t value_size, size_t headers_size, size_t id_size, int64_t expected_offset
) noexcept nogil:
    return (
        bytes_field_size(key_size) + bytes_field_size(value_size) + target_size + headers_size
        + bytes_field_size(id_size) + number_field_size(expected_offset)
    )


cdef uint8_t* write_publish_request(
    uint8_t* out, const uint8_t* target, size_t target_size, const uint8_t* key, size_t key_size,
    const uint8_t* value, size_t value_size, const uint8_t* headers, size_t headers_size,
    const uint8_t* id, size_t id_size, int64_t expected_offset
) noexcept nogil:
    out = write_bytes_field(out, 1, key, key_size)
    out = write_bytes_field(out, 2, value, value_size)
    if target_size:
        memcpy(out, target, target_size)
        out += target_size
    if headers_size:
        memcpy(out, headers, headers_size)
        out += headers_size
    out = write_bytes_field(out, 7, id, id_size)
    return write_number_field(out, 9, expected_offset)


cdef uint32_t write_decimal(uint8_t* out, uint64_t number) noexcept nogil:
    cdef uint8_t digits[CORRELATION_ID_MAX]
    cdef uint32_t count = 0, index
    while True:
        digits[count] = <uint8_t> (48 + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    for index in range(count):
        out[index] = digits[count - 1 - index]
    return count
