# Record batches: the unit of append, checksum, replication and recovery. This module checks, reads and searches them.
#
#   0               4               8       10  11  12              16
#   ┌───────────────┬───────────────┬───────┬───┬───┬───────────────┐
#   │ crc        u32│ length     u32│magic  │ver│att│ count      u32│
#   ├───────────────┴───────────────┼───────┴───┴───┼───────────────┤ 16
#   │ base_offset                i64│ last_delta u32│ body_bytes u32│
#   ├───────────────────────────────┼───────────────┴───────────────┤ 32
#   │ leader_epoch               u64│ first_timestamp            i64│
#   ├───────────────────────────────┼───────────────────────────────┤ 48
#   │ max_timestamp              i64│ body …                        │
#   └───────────────────────────────┴───────────────────────────────┘ 56
#
#   body    subject_len varint · subject · record × count
#   record  size varint · flags u8 · offset_delta varint · time_delta varint
#           [key_len · key] [value_len · value] [subject_len · subject] [reply_len · reply]
#           [header_count · (name_len · name · value_len · value) …]
#
# Little-endian. crc is CRC-32C of all bytes after it; length includes the header. docs/internals/formats.md has the rest.
# The checks and the record reader are in records.pxd, so that all kernels can inline them.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.checksum cimport crc32c_of, crc32c_setup
from bascule.kernels.wire.numbers cimport load_u16, load_u64, read_bytes, store_u32, store_u64

crc32c_setup()

HEADER_BYTES = HEADER_SIZE
MAGIC = BATCH_MAGIC
VERSION = BATCH_VERSION
VERSION_PLAIN = BATCH_VERSION_PLAIN
CODEC_MASK = ATTR_CODEC
CODEC_NONE = 0
CODEC_ZSTD = ATTR_ZSTD
ENCRYPTED = ATTR_ENCRYPTED
FOLLOWS_GAP = ATTR_FOLLOWS_GAP
PRODUCERS = ATTR_PRODUCERS
OFFSET_MAX = INT64_MAX

REASONS = (
    "incomplete", "bad length", "bad magic", "future version", "bad attributes",
    "bad checksum", "bad offsets", "bad timestamps", "bad epoch", "bad records",
)

class BatchError(ValueError):
    def __init__(self, reason, position):
        super().__init__(f"{reason} in the batch at byte {position}")
        self.reason = reason
        self.position = position

    def __reduce__(self):
        return BatchError, (self.reason, self.position)


cdef str fault_name(int fault):
    if fault == GOOD:
        return None
    if fault == SEALED:
        return "sealed"
    return <str> REASONS[fault - 1]


cdef inline const uint8_t* at_position(Bytes source, Py_ssize_t position) except NULL:
    if position < 0 or position > source.size:
        raise ValueError(f"position {position} is outside of the {source.size} bytes")
    # The address of an empty buffer may be NULL, which means an error here.
    return source.data + position if source.data != NULL else <const uint8_t*> b""


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


cdef class Record:
    cdef readonly object offset, timestamp, leader_epoch, key, value, headers, subject, reply

    cdef tuple fields(self):
        return (
            self.offset, self.timestamp, self.leader_epoch, self.key, self.value, self.headers, self.subject, self.reply,
        )

    def __eq__(self, other):
        return isinstance(other, Record) and self.fields() == (<Record> other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __repr__(self):
        return f"Record(offset={self.offset}, key={self.key!r}, value={self.value!r})"


cdef class BatchHeader:
    cdef readonly object crc, length, version, attributes, count, base_offset, last_offset, body_bytes
    cdef readonly object leader_epoch, first_timestamp, max_timestamp

    @property
    def is_sealed(self):
        return bool(self.attributes & ATTR_SEALED)


cdef inline bytes copy_bytes(const uint8_t* data, uint32_t size):
    return PyBytes_FromStringAndSize(<const char*> data, size)


cdef tuple decode_headers(RecordView* view):
    cdef const uint8_t* at = view.headers
    cdef const uint8_t* end = at + view.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef uint32_t name_size = 0, value_size = 0, index
    cdef list pairs = []
    for index in range(view.header_count):
        # read_record() has checked the same bytes
        at = read_bytes(at, end, &name, &name_size)
        at = read_bytes(at, end, &value, &value_size)
        pairs.append((copy_bytes(name, name_size), copy_bytes(value, value_size)))
    return tuple(pairs)


cdef Record record_object(BatchView* batch, RecordView* view, bytes subject):
    cdef Record record = Record.__new__(Record)
    record.offset = view.offset
    record.timestamp = view.timestamp
    record.leader_epoch = batch.leader_epoch
    record.key = copy_bytes(view.key, view.key_size) if view.flags & HAS_KEY else None
    record.value = copy_bytes(view.value, view.value_size) if view.flags & HAS_VALUE else None
    record.headers = decode_headers(view) if view.flags & HAS_HEADERS else ()
    record.subject = copy_bytes(view.subject, view.subject_size) if view.flags & HAS_SUBJECT else subject
    record.reply = copy_bytes(view.reply, view.reply_size) if view.flags & HAS_REPLY else b""
    return record


def read_header(data, Py_ssize_t position=0):
    cdef Bytes source = Bytes(data)
    cdef BatchView view
    cdef const uint8_t* at = at_position(source, position)
    cdef int fault = view_header(at, at + (source.size - position), &view)
    cdef BatchHeader header
    if fault:
        raise BatchError(fault_name(fault), position)
    header = BatchHeader.__new__(BatchHeader)
    header.crc = load_u32(at + CRC_AT)
    header.length = view.length
    header.version = view.version
    header.attributes = view.attributes
    header.count = view.count
    header.base_offset = view.base_offset
    header.last_offset = view.base_offset + <object> load_u32(at + LAST_DELTA_AT)
    header.body_bytes = view.body_bytes
    header.leader_epoch = view.leader_epoch
    header.first_timestamp = view.first_timestamp
    header.max_timestamp = view.max_timestamp
    return header


def check(data, Py_ssize_t position=0):
    cdef Bytes source = Bytes(data)
    cdef BatchView view
    cdef const uint8_t* at = at_position(source, position)
    cdef int fault
    with nogil:
        fault = view_batch(at, at + (source.size - position), &view, True)
        if fault == GOOD and not view.attributes & ATTR_SEALED:
            fault = check_body(&view)
    if fault:
        raise BatchError(fault_name(fault), position)
    return view.length


cdef class Scan:
    cdef readonly object end, next_offset, batches, records, first_timestamp, last_timestamp, last_epoch, reason


def scan(
    data, int64_t next_offset, int64_t last_timestamp=0, uint64_t last_epoch=0, Py_ssize_t start=0, *,
    bint gap=False, bint checksums=True, bint structure=False,
    int64_t position=0, int64_t interval=0, list marks=None, list epochs=None,
):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end = at + (source.size - start)
    cdef BatchView view
    cdef int fault = GOOD
    cdef int64_t batches = 0, records = 0, first_timestamp = -1, here, last_mark = -1
    cdef bint wants_marks = marks is not None
    cdef bint wants_epochs = epochs is not None
    cdef Scan result
    with nogil:
        while at < end:
            fault = view_bytes(at, end, &view, checksums)
            if fault == GOOD:
                fault = check_offsets(&view)
            if fault == GOOD and view.base_offset != next_offset:
                if view.base_offset < next_offset or not (gap or view.attributes & ATTR_FOLLOWS_GAP):
                    fault = BAD_OFFSETS
            if fault == GOOD:
                fault = check_timestamps(&view)
            if fault == GOOD and view.first_timestamp < last_timestamp:
                fault = BAD_TIMESTAMPS
            if fault == GOOD and view.leader_epoch < last_epoch:
                fault = BAD_EPOCH
            if fault == GOOD and structure and not view.attributes & ATTR_SEALED:
                fault = check_body(&view)
            if fault:
                break
            here = start + (at - (end - (source.size - start)))
            if wants_marks and (last_mark < 0 or here - last_mark >= interval):
                last_mark = here
                with gil:
                    marks.append((view.base_offset, position + here, view.first_timestamp))
            if wants_epochs and view.leader_epoch > last_epoch:
                with gil:
                    epochs.append((view.leader_epoch, next_offset))
            if first_timestamp < 0:
                first_timestamp = view.first_timestamp
            gap = False
            next_offset = view.last_offset + 1
            last_timestamp = view.max_timestamp
            last_epoch = view.leader_epoch
            batches += 1
            records += view.count
            at = view.end
    result = Scan.__new__(Scan)
    result.end = source.size - (end - at)
    result.next_offset = next_offset
    result.batches = batches
    result.records = records
    result.first_timestamp = first_timestamp
    result.last_timestamp = last_timestamp
    result.last_epoch = last_epoch
    result.reason = fault_name(fault)
    return result


def find_offset(data, int64_t offset, Py_ssize_t start=0):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end = at + (source.size - start)
    cdef BatchView view
    while view_header(at, end, &view) == GOOD:
        if view.last_offset >= offset:
            return source.size - (end - at)
        if view.length > end - at:
            break
        at = view.end
    return -1


def find_timestamp(data, int64_t timestamp, Py_ssize_t start=0):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end = at + (source.size - start)
    cdef BatchView view
    while view_header(at, end, &view) == GOOD:
        if view.max_timestamp >= timestamp and view.count:
            return source.size - (end - at)
        if view.length > end - at:
            break
        at = view.end
    return -1


cdef class Selection:
    cdef readonly object start, stop, next_offset, reason


def select(data, int64_t offset, int64_t end_offset, int64_t bytes_max, Py_ssize_t start=0):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end = at + (source.size - start)
    cdef const uint8_t* first = NULL
    cdef int64_t next_offset = offset
    cdef BatchView view
    cdef int fault = GOOD
    cdef Selection result
    with nogil:
        while at < end:
            fault = view_header(at, end, &view)
            if fault:
                break
            if first == NULL and view.last_offset < offset:
                if view.length > end - at:
                    fault = INCOMPLETE
                    break
                at = view.end
                continue
            if view.base_offset >= end_offset:
                break
            if first != NULL and (at - first) + <int64_t> view.length > bytes_max:
                break
            fault = view_batch(at, end, &view, True)
            if fault == GOOD and first != NULL and view.base_offset != next_offset:
                # intact but out of order: an older copy, or a batch after a lost one
                if view.base_offset < next_offset or not view.attributes & ATTR_FOLLOWS_GAP:
                    fault = BAD_OFFSETS
            if fault:
                break
            if first == NULL:
                first = at
            at = view.end
            next_offset = view.last_offset + 1
    result = Selection.__new__(Selection)
    result.stop = source.size - (end - at)
    result.start = result.stop if first == NULL else source.size - (end - first)
    result.next_offset = next_offset
    result.reason = fault_name(fault)
    return result


def resync(data, Py_ssize_t start, int64_t offset):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end = at + (source.size - start)
    cdef BatchView view
    cdef bint found = False
    with nogil:
        while end - at >= HEADER_SIZE:
            if load_u16(at + MAGIC_AT) == BATCH_MAGIC and <int64_t> load_u64(at + BASE_OFFSET_AT) >= offset:
                if view_batch(at, end, &view, True) == GOOD:
                    found = True
                    break
            at += 1
    return source.size - (end - at) if found else -1


def decode(data, int64_t first_offset=0, int64_t end_offset=INT64_MAX, Py_ssize_t start=0, Py_ssize_t stop=-1):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = at_position(source, start)
    cdef const uint8_t* end
    cdef BatchView batch
    cdef list found = []
    cdef int fault
    if stop == -1:
        stop = source.size
    if stop < start or stop > source.size:
        raise ValueError(f"stop {stop} is outside of {start} to {source.size}")
    end = at + (stop - start)
    while at < end:
        fault = view_batch(at, end, &batch, False)
        if fault == GOOD and batch.attributes & ATTR_SEALED:
            fault = BAD_RECORDS
        if fault == GOOD:
            fault = decode_batch(&batch, first_offset, end_offset, found)
        if fault:
            raise BatchError(fault_name(fault), stop - (end - at))
        at = batch.end
    return found


cdef int decode_batch(BatchView* batch, int64_t first_offset, int64_t end_offset, list found) except -1:
    cdef RecordView record
    cdef const uint8_t* at
    cdef uint32_t index
    cdef bytes subject
    if check_body(batch):
        return BAD_RECORDS
    at = open_body(batch)
    subject = copy_bytes(batch.subject, batch.subject_size)
    for index in range(batch.count):
        at = read_record(at, batch, &record)
        if at == NULL:
            return BAD_RECORDS  # the bytes changed since they were checked
        if record.offset >= end_offset:
            break
        if record.offset >= first_offset:
            found.append(record_object(batch, &record, subject))
    return GOOD


cdef int view_clear_batch(Bytes source, Py_ssize_t position, BatchView* batch, bint checksum) except -1:
    cdef const uint8_t* at = at_position(source, position)
    cdef int fault
    with nogil:
        fault = view_batch(at, at + (source.size - position), batch, checksum)
        if fault == GOOD:
            fault = check_body(batch)
    if fault:
        raise BatchError(fault_name(fault), position)
    return 0


def offset_at(data, int64_t timestamp, Py_ssize_t position=0):
    cdef Bytes source = Bytes(data)
    cdef BatchView batch
    cdef RecordView record
    cdef const uint8_t* at
    cdef uint32_t index
    view_clear_batch(source, position, &batch, False)
    at = open_body(&batch)
    for index in range(batch.count):
        at = read_record(at, &batch, &record)
        if at == NULL:
            raise BatchError("bad records", position)
        if record.timestamp >= timestamp:
            return record.offset
    return -1


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────


cdef void restamp(uint8_t* at) noexcept nogil:
    store_u32(at + CRC_AT, crc32c_of(at + LENGTH_AT, load_u32(at + LENGTH_AT) - LENGTH_AT, 0))


def with_body(batch, body, uint8_t attributes):
    cdef Bytes source = Bytes(batch)
    cdef Bytes content = Bytes(body)
    cdef BatchView view
    cdef bytes result
    cdef uint8_t* at
    cdef int fault = view_header(source.data, source.data + source.size, &view)
    if fault:
        raise BatchError(fault_name(fault), 0)
    if attributes & ~ATTR_SEALED or attributes & ATTR_CODEC > ATTR_ZSTD:
        raise ValueError(f"attributes {attributes:#x} are not a codec and an encryption bit")
    if content.size > 0xFFFFFFFF - HEADER_SIZE:
        raise ValueError(f"a body of {content.size} bytes does not fit a batch")
    result = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + content.size)
    at = <uint8_t*> PyBytes_AS_STRING(result)
    memcpy(at, view.start, HEADER_SIZE)
    memcpy(at + HEADER_SIZE, content.data, content.size)
    store_u32(at + LENGTH_AT, <uint32_t> (HEADER_SIZE + content.size))
    at[VERSION_AT] = BATCH_VERSION if attributes & ATTR_ENCRYPTED else BATCH_VERSION_PLAIN
    at[ATTRIBUTES_AT] = (view.attributes & ~ATTR_SEALED) | attributes
    if not attributes:
        store_u32(at + BODY_BYTES_AT, <uint32_t> content.size)
    restamp(at)
    return result


def trim(batch, int64_t end_offset):
    cdef Bytes source = Bytes(batch)
    cdef BatchView view
    cdef RecordView record
    cdef const uint8_t* at
    cdef const uint8_t* cut
    cdef uint8_t* out
    cdef uint32_t index, kept = 0
    cdef int64_t max_timestamp
    cdef bytes result
    view_clear_batch(source, 0, &view, True)  # a damaged batch must not get a new checksum
    if end_offset <= view.base_offset or end_offset > view.last_offset + 1:
        raise ValueError(f"cannot trim the batch of offsets {view.base_offset} to {view.last_offset} at {end_offset}")
    max_timestamp = view.first_timestamp
    at = cut = open_body(&view)
    for index in range(view.count):
        at = read_record(at, &view, &record)
        if at == NULL:
            raise BatchError("bad records", 0)
        if record.offset >= end_offset:
            break
        cut = at
        kept += 1
        max_timestamp = record.timestamp
    result = PyBytes_FromStringAndSize(<const char*> view.start, cut - view.start)
    out = <uint8_t*> PyBytes_AS_STRING(result)
    store_u32(out + LENGTH_AT, <uint32_t> (cut - view.start))
    store_u32(out + COUNT_AT, kept)
    store_u32(out + LAST_DELTA_AT, <uint32_t> (end_offset - 1 - view.base_offset))
    store_u32(out + BODY_BYTES_AT, <uint32_t> (cut - view.start - HEADER_SIZE))
    store_u64(out + MAX_TIMESTAMP_AT, <uint64_t> max_timestamp)
    restamp(out)
    return result
