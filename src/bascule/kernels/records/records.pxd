# Record batches for other kernels: checked views of bytes. records.pyx shows the format.

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.wire.checksum cimport crc32c_of
from bascule.kernels.wire.numbers cimport load_u16, load_u32, load_u64, read_bytes, read_varint

# Positions in the header, in the order of the drawing.
cdef enum:
    CRC_AT = 0
    LENGTH_AT = CRC_AT + 4
    MAGIC_AT = LENGTH_AT + 4
    VERSION_AT = MAGIC_AT + 2
    ATTRIBUTES_AT = VERSION_AT + 1
    COUNT_AT = ATTRIBUTES_AT + 1
    BASE_OFFSET_AT = COUNT_AT + 4
    LAST_DELTA_AT = BASE_OFFSET_AT + 8
    BODY_BYTES_AT = LAST_DELTA_AT + 4
    LEADER_EPOCH_AT = BODY_BYTES_AT + 4
    FIRST_TIMESTAMP_AT = LEADER_EPOCH_AT + 8
    MAX_TIMESTAMP_AT = FIRST_TIMESTAMP_AT + 8
    HEADER_SIZE = MAX_TIMESTAMP_AT + 8

cdef enum:
    BATCH_MAGIC = 0xBA5C
    BATCH_VERSION = 2           # the newest; what an encrypted batch has
    BATCH_VERSION_PLAIN = 1     # what every other batch has
    ATTR_CODEC = 0x07
    ATTR_ZSTD = 0x01
    ATTR_ENCRYPTED = 0x08
    ATTR_FOLLOWS_GAP = 0x10
    ATTR_PRODUCERS = 0x20
    ATTR_UNKNOWN = 0xC0
    ATTR_SEALED = ATTR_CODEC | ATTR_ENCRYPTED

cdef enum:
    HAS_KEY = 1
    HAS_VALUE = 2
    HAS_SUBJECT = 4
    HAS_REPLY = 8
    HAS_HEADERS = 16
    FLAGS_UNKNOWN = 0xE0

# Indexes into REASONS.
cdef enum Fault:
    GOOD = 0
    INCOMPLETE
    BAD_LENGTH
    BAD_MAGIC
    FUTURE_VERSION
    BAD_ATTRIBUTES
    BAD_CHECKSUM
    BAD_OFFSETS
    BAD_TIMESTAMPS
    BAD_EPOCH
    BAD_RECORDS
    SEALED

cdef struct BatchView:
    const uint8_t* start
    const uint8_t* end
    uint32_t length
    uint32_t count
    uint32_t body_bytes
    uint8_t version
    uint8_t attributes
    int64_t base_offset
    int64_t last_offset
    uint64_t leader_epoch
    int64_t first_timestamp
    int64_t max_timestamp
    const uint8_t* subject
    uint32_t subject_size

cdef struct RecordView:
    const uint8_t* start
    uint8_t flags
    int64_t offset
    int64_t timestamp
    const uint8_t* key
    uint32_t key_size
    const uint8_t* value
    uint32_t value_size
    const uint8_t* subject
    uint32_t subject_size
    const uint8_t* reply
    uint32_t reply_size
    const uint8_t* headers      # header_count pairs, still encoded
    uint32_t headers_size
    uint32_t header_count

cdef str fault_name(int fault)


cdef inline int view_header(const uint8_t* at, const uint8_t* end, BatchView* view) noexcept nogil:
    # Views the header only. The body may end after `end`.
    if end - at < HEADER_SIZE:
        return INCOMPLETE
    view.length = load_u32(at + LENGTH_AT)
    if view.length < HEADER_SIZE:
        return BAD_LENGTH
    if load_u16(at + MAGIC_AT) != BATCH_MAGIC or at[VERSION_AT] == 0:
        return BAD_MAGIC
    if at[VERSION_AT] > BATCH_VERSION:
        return FUTURE_VERSION
    view.version = at[VERSION_AT]
    view.attributes = at[ATTRIBUTES_AT]
    if view.attributes & ATTR_UNKNOWN or view.attributes & ATTR_CODEC > ATTR_ZSTD:
        return BAD_ATTRIBUTES
    view.start = at
    view.end = at + view.length
    view.count = load_u32(at + COUNT_AT)
    view.base_offset = <int64_t> load_u64(at + BASE_OFFSET_AT)
    # The sum in a damaged header may overflow; it is then INT64_MAX, which check_offsets() refuses.
    view.last_offset = load_u32(at + LAST_DELTA_AT)
    if view.base_offset > INT64_MAX - view.last_offset:
        view.last_offset = INT64_MAX
    else:
        view.last_offset += view.base_offset
    view.body_bytes = load_u32(at + BODY_BYTES_AT)
    view.leader_epoch = load_u64(at + LEADER_EPOCH_AT)
    view.first_timestamp = <int64_t> load_u64(at + FIRST_TIMESTAMP_AT)
    view.max_timestamp = <int64_t> load_u64(at + MAX_TIMESTAMP_AT)
    return GOOD


cdef inline int view_bytes(const uint8_t* at, const uint8_t* end, BatchView* view, bint checksum) noexcept nogil:
    # Views a whole batch, and verifies its checksum if `checksum`.
    cdef int fault = view_header(at, end, view)
    if fault:
        return fault
    if view.length > <uint64_t> (end - at):
        return INCOMPLETE
    if checksum and crc32c_of(at + LENGTH_AT, view.length - LENGTH_AT, 0) != load_u32(at + CRC_AT):
        return BAD_CHECKSUM
    return GOOD


# Checks of a batch alone, without the batch before it. The offset after a batch must be valid too.

cdef inline int check_offsets(BatchView* view) noexcept nogil:
    if view.base_offset < 0 or view.last_offset == INT64_MAX:
        return BAD_OFFSETS
    if view.count > <uint64_t> (view.last_offset - view.base_offset) + 1:
        return BAD_OFFSETS
    return GOOD


cdef inline int check_timestamps(BatchView* view) noexcept nogil:
    if view.first_timestamp < 0 or view.max_timestamp < view.first_timestamp:
        return BAD_TIMESTAMPS
    return GOOD


cdef inline int view_batch(const uint8_t* at, const uint8_t* end, BatchView* view, bint checksum) noexcept nogil:
    cdef int fault = view_bytes(at, end, view, checksum)
    if fault == GOOD:
        fault = check_offsets(view)
    if fault == GOOD:
        fault = check_timestamps(view)
    return fault


cdef inline const uint8_t* open_body(BatchView* view) noexcept nogil:
    # Returns the position of the first record; NULL if the body is sealed or does not begin with a subject.
    if view.attributes & ATTR_SEALED or view.body_bytes != view.length - HEADER_SIZE:
        return NULL
    return read_bytes(view.start + HEADER_SIZE, view.end, &view.subject, &view.subject_size)


cdef inline const uint8_t* read_headers(const uint8_t* at, const uint8_t* end, RecordView* record) noexcept nogil:
    cdef uint64_t count = 0
    cdef uint64_t index
    cdef const uint8_t* ignored = NULL
    cdef uint32_t size = 0
    at = read_varint(at, end, &count)
    if at == NULL or count > <uint64_t> (end - at):
        return NULL
    record.headers = at
    record.header_count = <uint32_t> count
    for index in range(count):
        at = read_bytes(at, end, &ignored, &size)
        if at == NULL:
            return NULL
        at = read_bytes(at, end, &ignored, &size)
        if at == NULL:
            return NULL
    record.headers_size = <uint32_t> (at - record.headers)
    return at


cdef inline const uint8_t* read_record(const uint8_t* at, BatchView* view, RecordView* record) noexcept nogil:
    # Views the record at `at` and checks its lengths; returns the position after it, or NULL.
    # The caller checks that offsets rise and timestamps do not fall.
    cdef uint64_t size = 0
    cdef uint64_t delta = 0
    cdef const uint8_t* end
    record.start = at
    at = read_varint(at, view.end, &size)
    if at == NULL or size > <uint64_t> (view.end - at) or size == 0:
        return NULL
    end = at + size
    record.flags = at[0]
    if record.flags & FLAGS_UNKNOWN:
        return NULL
    at = read_varint(at + 1, end, &delta)
    if at == NULL or delta > <uint64_t> (view.last_offset - view.base_offset):
        return NULL
    record.offset = view.base_offset + <int64_t> delta
    at = read_varint(at, end, &delta)
    if at == NULL or delta > <uint64_t> (view.max_timestamp - view.first_timestamp):
        return NULL
    record.timestamp = view.first_timestamp + <int64_t> delta
    record.key = NULL
    record.key_size = 0
    record.value = NULL
    record.value_size = 0
    record.subject = view.subject
    record.subject_size = view.subject_size
    record.reply = NULL
    record.reply_size = 0
    record.headers = NULL
    record.headers_size = 0
    record.header_count = 0
    if record.flags & HAS_KEY:
        at = read_bytes(at, end, &record.key, &record.key_size)
        if at == NULL:
            return NULL
    if record.flags & HAS_VALUE:
        at = read_bytes(at, end, &record.value, &record.value_size)
        if at == NULL:
            return NULL
    if record.flags & HAS_SUBJECT:
        at = read_bytes(at, end, &record.subject, &record.subject_size)
        if at == NULL:
            return NULL
    if record.flags & HAS_REPLY:
        at = read_bytes(at, end, &record.reply, &record.reply_size)
        if at == NULL:
            return NULL
    if record.flags & HAS_HEADERS:
        at = read_headers(at, end, record)
        if at == NULL:
            return NULL
    if at != end:
        return NULL
    return end


cdef inline int check_body(BatchView* batch) noexcept nogil:
    # Checks all records of a plain batch: lengths, order, count, and no bytes after them.
    cdef RecordView record
    cdef const uint8_t* at = open_body(batch)
    cdef int64_t last_offset = -1
    cdef int64_t last_timestamp = batch.first_timestamp
    cdef uint32_t index
    if at == NULL:
        return BAD_RECORDS
    for index in range(batch.count):
        at = read_record(at, batch, &record)
        if at == NULL or record.offset <= last_offset or record.timestamp < last_timestamp:
            return BAD_RECORDS
        last_offset = record.offset
        last_timestamp = record.timestamp
    if at != batch.end or last_timestamp != batch.max_timestamp:
        return BAD_RECORDS
    return GOOD
