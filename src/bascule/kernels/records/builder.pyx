# Builds record batches: many records in one buffer, and a header. records.pyx shows the format.
#
# Kernels that take records from the network call add_record() without the GIL; add() and add_columns() are for Python.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from bascule.kernels.records.records cimport (
    ATTR_PRODUCERS, ATTRIBUTES_AT, BASE_OFFSET_AT, BATCH_MAGIC, BATCH_VERSION_PLAIN, BODY_BYTES_AT, COUNT_AT, CRC_AT,
    FIRST_TIMESTAMP_AT, HAS_HEADERS, HAS_KEY, HAS_REPLY, HAS_SUBJECT, HAS_VALUE, HEADER_SIZE, LAST_DELTA_AT,
    LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT, VERSION_AT, RecordView,
)
from bascule.kernels.wire.buffers cimport Bytes, prefetch
from bascule.kernels.wire.checksum cimport crc32c_of, crc32c_setup
from bascule.kernels.wire.numbers cimport store_u16, store_u32, store_u64, varint_size, write_bytes, write_varint

crc32c_setup()

# The results of add_record(), and the name of the field that was too large.
cdef enum Refusal:
    ACCEPTED = 0
    KEY_TOO_LARGE
    VALUE_TOO_LARGE
    TOO_MANY_HEADERS
    HEADERS_TOO_LARGE
    SUBJECT_TOO_LARGE
    REPLY_TOO_LARGE
    BATCH_TOO_LARGE
    TOO_MANY_RECORDS
    OUT_OF_MEMORY
    CHANGED_MEANWHILE

# Smaller batches are finished with the GIL held: giving it up and waiting for it costs more than their checksum.
cdef size_t UNLOCKED_BYTES_MIN = 64 * 1024

cdef tuple REFUSED_FIELDS = (
    None, "key", "value", "headers", "header bytes", "subject", "reply", "batch", "records", None,
)


class LimitError(ValueError):
    def __init__(self, field, size, limit):
        super().__init__(f"{field} of {size} is above the limit of {limit}")
        self.field = field
        self.size = size
        self.limit = limit

    def __reduce__(self):
        return LimitError, (self.field, self.size, self.limit)


cdef class BatchBuilder:
    def __cinit__(
        self, *, uint32_t key_bytes_max, uint32_t value_bytes_max, uint32_t headers_max, uint32_t headers_bytes_max,
        uint32_t subject_bytes_max, uint32_t batch_bytes_max, uint32_t records_max, error=LimitError,
    ):
        self.error = error
        self.key_bytes_max = key_bytes_max
        self.value_bytes_max = value_bytes_max
        self.headers_max = headers_max
        self.headers_bytes_max = headers_bytes_max
        self.subject_bytes_max = subject_bytes_max
        self.batch_bytes_max = batch_bytes_max
        self.records_max = records_max
        self.capacity = 4096
        self.buffer = <uint8_t*> malloc(self.capacity)
        if self.buffer == NULL:
            raise MemoryError("no memory for a record batch")
        self.reset()

    def __dealloc__(self):
        free(self.buffer)

    cdef void reset(self) noexcept:
        self.size = HEADER_SIZE
        self.records = 0
        self.last_time_delta = 0
        self.subject_at = 0
        self.subject_size = 0
        self.attributes = 0

    @property
    def count(self):
        return self.records

    @property
    def nbytes(self):
        # an empty batch still holds the (empty) subject
        return self.size if self.records else HEADER_SIZE + 1

    def clear(self):
        self.must_not_be_viewed()
        self.reset()

    cdef int must_not_be_viewed(self) except -1:
        if self.views:
            raise BufferError("the stamped batch is still in use: release its view before changing the builder")
        self.stamped = False
        return 0

    cdef int reserve(self, size_t more) noexcept nogil:
        cdef size_t wanted = self.size + more
        cdef size_t capacity = self.capacity
        cdef uint8_t* grown
        if wanted <= capacity:
            return ACCEPTED
        while capacity < wanted:
            capacity *= 2
        grown = <uint8_t*> realloc(self.buffer, capacity)
        if grown == NULL:
            return OUT_OF_MEMORY
        self.buffer = grown
        self.capacity = capacity
        return ACCEPTED

    cdef int check_sizes(self, RecordView* record) noexcept nogil:
        if record.key_size > self.key_bytes_max:
            return KEY_TOO_LARGE
        if record.value_size > self.value_bytes_max:
            return VALUE_TOO_LARGE
        if record.header_count > self.headers_max:
            return TOO_MANY_HEADERS
        if record.headers_size > self.headers_bytes_max:
            return HEADERS_TOO_LARGE
        if record.subject_size > self.subject_bytes_max:
            return SUBJECT_TOO_LARGE
        if record.reply_size > self.subject_bytes_max:
            return REPLY_TOO_LARGE
        if self.records >= self.records_max:
            return TOO_MANY_RECORDS
        return ACCEPTED

    cdef int add_record(self, RecordView* record, uint64_t time_delta) noexcept nogil:
        # flags of the caller: HAS_KEY and HAS_VALUE; the others follow from the sizes.
        cdef uint8_t flags = record.flags & (HAS_KEY | HAS_VALUE)
        cdef uint64_t content
        cdef size_t prelude = 0
        cdef uint8_t* at
        cdef int refusal = self.check_sizes(record)
        if refusal:
            return refusal
        if time_delta < self.last_time_delta:
            time_delta = self.last_time_delta
        if self.records == 0:
            prelude = varint_size(record.subject_size) + record.subject_size
        elif not (
            record.subject_size == self.subject_size
            and memcmp(self.buffer + self.subject_at, record.subject, record.subject_size) == 0
        ):
            flags |= HAS_SUBJECT
        content = 1 + varint_size(self.records) + varint_size(time_delta)
        if flags & HAS_KEY:
            content += varint_size(record.key_size) + record.key_size
        if flags & HAS_VALUE:
            content += varint_size(record.value_size) + record.value_size
        if flags & HAS_SUBJECT:
            content += varint_size(record.subject_size) + record.subject_size
        if record.reply_size:
            flags |= HAS_REPLY
            content += varint_size(record.reply_size) + record.reply_size
        if record.header_count:
            flags |= HAS_HEADERS
            content += varint_size(record.header_count) + record.headers_size
        if self.size + prelude + varint_size(content) + content > self.batch_bytes_max:
            self.refused_size = self.size + prelude + varint_size(content) + content
            return BATCH_TOO_LARGE
        if self.reserve(prelude + varint_size(content) + content):
            return OUT_OF_MEMORY
        at = self.buffer + self.size
        if prelude:
            at = write_bytes(at, record.subject, record.subject_size)
            self.subject_size = record.subject_size
            self.subject_at = <uint32_t> (at - self.buffer) - record.subject_size
        at = write_varint(at, content)
        at[0] = flags
        at = write_varint(at + 1, self.records)
        at = write_varint(at, time_delta)
        if flags & HAS_KEY:
            at = write_bytes(at, record.key, record.key_size)
        if flags & HAS_VALUE:
            at = write_bytes(at, record.value, record.value_size)
        if flags & HAS_SUBJECT:
            at = write_bytes(at, record.subject, record.subject_size)
        if flags & HAS_REPLY:
            at = write_bytes(at, record.reply, record.reply_size)
        if flags & HAS_HEADERS:
            at = write_varint(at, record.header_count)
            memcpy(at, record.headers, record.headers_size)
            at += record.headers_size
        self.size = at - self.buffer
        self.records += 1
        self.last_time_delta = time_delta
        # With many partitions the next record of this batch comes after records of many others: its memory would not be in the cache.
        prefetch(at, 1)
        prefetch(at + 64, 1)
        prefetch(at + 128, 1)
        return ACCEPTED

    cdef object refused(self, int refusal, RecordView* record):
        cdef tuple sizes, limits
        if refusal == OUT_OF_MEMORY:
            return MemoryError("no memory for a record batch")
        if refusal == CHANGED_MEANWHILE:
            return ValueError("the columns changed while they were read")
        sizes = (
            None, record.key_size, record.value_size, record.header_count, record.headers_size,
            record.subject_size, record.reply_size, self.refused_size, self.records + 1,
        )
        limits = (
            None, self.key_bytes_max, self.value_bytes_max, self.headers_max, self.headers_bytes_max,
            self.subject_bytes_max, self.subject_bytes_max, self.batch_bytes_max, self.records_max,
        )
        return self.error(REFUSED_FIELDS[refusal], sizes[refusal], limits[refusal])

    def add(
        self, key, value, headers=(), bytes subject not None=b"", bytes reply not None=b"", int64_t time_delta=0,
    ):
        cdef RecordView record
        cdef Bytes key_bytes, value_bytes
        cdef bytes encoded = b""
        cdef bint has_producer = False
        cdef int refusal
        record.flags = 0
        record.key = record.value = record.headers = NULL
        record.key_size = record.value_size = record.headers_size = record.header_count = 0
        if key is not None:
            key_bytes = Bytes(key)
            record.flags |= HAS_KEY
            record.key = key_bytes.data
            record.key_size = size_of_field(self.error, "key", key_bytes.size, self.key_bytes_max)
        if value is not None:
            value_bytes = Bytes(value)
            record.flags |= HAS_VALUE
            record.value = value_bytes.data
            record.value_size = size_of_field(self.error, "value", value_bytes.size, self.value_bytes_max)
        if headers:
            record.header_count, encoded, has_producer = encode_headers(self.error, headers, self.headers_max)
            record.headers = <const uint8_t*> PyBytes_AS_STRING(encoded)
            record.headers_size = size_of_field(self.error, "header bytes", len(encoded), self.headers_bytes_max)
        record.subject = <const uint8_t*> PyBytes_AS_STRING(subject)
        record.subject_size = size_of_field(self.error, "subject", len(subject), self.subject_bytes_max)
        record.reply = <const uint8_t*> PyBytes_AS_STRING(reply)
        record.reply_size = size_of_field(self.error, "reply", len(reply), self.subject_bytes_max)
        # Not earlier, because the key or the value may be a view of this builder.
        self.must_not_be_viewed()
        refusal = self.add_record(&record, <uint64_t> max(time_delta, 0))
        if refusal:
            raise self.refused(refusal, &record)
        if has_producer:
            self.attributes |= ATTR_PRODUCERS

    def add_columns(self, values, value_ends, keys=None, key_ends=None, bytes subject not None=b""):
        cdef Bytes value_bytes = Bytes(values)
        cdef Bytes key_bytes = None
        cdef const int64_t[::1] ends = int64_view(value_ends)
        cdef const int64_t[::1] stops = None
        cdef Py_ssize_t count = ends.shape[0]
        cdef Py_ssize_t index = 0
        cdef size_t size_before = self.size
        cdef uint32_t records_before = self.records
        cdef RecordView record
        cdef int refusal = ACCEPTED
        cdef bint keyed = keys is not None
        cdef int64_t value_at = 0, key_at = 0
        check_ends("value_ends", ends, value_bytes.size)
        if keyed != (key_ends is not None):
            raise ValueError("keys and key_ends belong together")
        if keyed:
            key_bytes = Bytes(keys)
            stops = int64_view(key_ends)
            if stops.shape[0] != count:
                raise ValueError(f"key_ends has {stops.shape[0]} entries, value_ends has {count}")
            check_ends("key_ends", stops, key_bytes.size)
        check_column(self.error, "value", ends, self.value_bytes_max)
        if keyed:
            check_column(self.error, "key", stops, self.key_bytes_max)
        record.flags = HAS_VALUE | (HAS_KEY if keyed else 0)
        record.key = record.headers = record.reply = NULL
        record.key_size = record.headers_size = record.header_count = record.reply_size = 0
        record.subject = <const uint8_t*> PyBytes_AS_STRING(subject)
        record.subject_size = size_of_field(self.error, "subject", len(subject), self.subject_bytes_max)
        self.must_not_be_viewed()
        with nogil:
            while index < count:
                # Each number is checked again, because another thread may have changed it since the first check.
                if not take_span(ends[index], &value_at, value_bytes.size, &record.value_size):
                    refusal = CHANGED_MEANWHILE
                    break
                record.value = value_bytes.data + (value_at - record.value_size)
                if keyed:
                    if not take_span(stops[index], &key_at, key_bytes.size, &record.key_size):
                        refusal = CHANGED_MEANWHILE
                        break
                    record.key = key_bytes.data + (key_at - record.key_size)
                refusal = self.add_record(&record, 0)
                if refusal:
                    break
                index += 1
        if refusal:
            error = self.refused(refusal, &record)
            self.size = size_before
            self.records = records_before
            raise error

    cdef void finish(self, int64_t base_offset, uint64_t leader_epoch, int64_t timestamp) noexcept nogil:
        cdef uint8_t* at = self.buffer
        store_u32(at + LENGTH_AT, <uint32_t> self.size)
        store_u16(at + MAGIC_AT, BATCH_MAGIC)
        at[VERSION_AT] = BATCH_VERSION_PLAIN
        at[ATTRIBUTES_AT] = self.attributes
        store_u32(at + COUNT_AT, self.records)
        store_u64(at + BASE_OFFSET_AT, <uint64_t> base_offset)
        store_u32(at + LAST_DELTA_AT, self.records - 1)
        store_u32(at + BODY_BYTES_AT, <uint32_t> (self.size - HEADER_SIZE))
        store_u64(at + LEADER_EPOCH_AT, leader_epoch)
        store_u64(at + FIRST_TIMESTAMP_AT, <uint64_t> timestamp)
        store_u64(at + MAX_TIMESTAMP_AT, <uint64_t> timestamp + self.last_time_delta)
        store_u32(at + CRC_AT, crc32c_of(at + LENGTH_AT, self.size - LENGTH_AT, 0))

    def stamp(self, int64_t base_offset, uint64_t leader_epoch, int64_t timestamp):
        self.must_not_be_viewed()
        if self.records == 0:
            raise ValueError("a batch needs at least one record")
        if base_offset < 0 or base_offset > INT64_MAX - self.records:
            raise ValueError(f"base offset {base_offset} is out of range")
        if timestamp < 0 or self.last_time_delta > <uint64_t> (INT64_MAX - timestamp):
            raise ValueError(f"timestamp {timestamp} is out of range")
        if self.size < UNLOCKED_BYTES_MIN:
            self.finish(base_offset, leader_epoch, timestamp)
        else:
            with nogil:
                self.finish(base_offset, leader_epoch, timestamp)
        self.stamped = True
        return memoryview(self)

    def __getbuffer__(self, Py_buffer* view, int flags):
        # The header is uninitialized before it is stamped.
        if not self.stamped:
            raise BufferError("only a stamped batch can be looked at")
        PyBuffer_FillInfo(view, self, self.buffer, self.size, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1


cdef inline bint take_span(int64_t end, int64_t* at, Py_ssize_t size, uint32_t* taken) noexcept nogil:
    # Moves `at` to `end` and sets the difference; False if `end` is invalid.
    if end < at[0] or end > size or end - at[0] > <int64_t> UINT32_MAX:
        return False
    taken[0] = <uint32_t> (end - at[0])
    at[0] = end
    return True


cdef uint32_t size_of_field(error, str field, Py_ssize_t size, uint32_t limit) except? 0xFFFFFFFF:
    if size > limit:
        raise error(field, size, limit)
    return <uint32_t> size


cdef const int64_t[::1] int64_view(source):
    ends = memoryview(source)
    if ends.ndim != 1 or ends.itemsize != 8 or ends.format.lstrip("<=@") not in ("q", "l"):
        raise ValueError("column ends must be one row of signed 64-bit integers")
    return ends.cast("B").cast("q")


cdef int check_ends(str name, const int64_t[::1] ends, Py_ssize_t size) except -1:
    cdef Py_ssize_t index
    cdef int64_t last = 0
    for index in range(ends.shape[0]):
        if ends[index] < last:
            raise ValueError(f"{name}[{index}] is {ends[index]}: ends may not decrease")
        last = ends[index]
    if last > size:
        raise ValueError(f"{name} reaches to {last}, the column has {size} bytes")
    return 0


cdef int check_column(error, str field, const int64_t[::1] ends, uint32_t limit) except -1:
    # Before a size is converted to 32 bits.
    cdef Py_ssize_t index
    cdef int64_t last = 0
    for index in range(ends.shape[0]):
        if ends[index] - last > limit:
            raise error(field, ends[index] - last, limit)
        last = ends[index]
    return 0


cdef tuple encode_headers(error, headers, uint32_t limit):
    cdef bytearray encoded = bytearray()
    cdef bytes name, value
    cdef uint32_t count = 0
    cdef bint has_producer = False
    cdef uint8_t number[10]
    for name, value in headers:
        if count == limit:
            raise error("headers", count + 1, limit)
        encoded += number[:write_varint(number, len(name)) - number]
        encoded += name
        encoded += number[:write_varint(number, len(value)) - number]
        encoded += value
        count += 1
        if name == b"bascule-producer":
            has_producer = True
    return count, bytes(encoded), has_producer
