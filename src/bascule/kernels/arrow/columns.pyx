# Columns from record batches: what a stream is as a table, in buffers laid out as Arrow wants them.
#
#   key, value, replySubject   validity bitmap · int32 ends · bytes      null when the record has none
#   subject                    int32 ends · UTF-8
#   headers                    int32 ends of rows · (int32 ends · UTF-8 names) · (int32 ends · values)
#   offset, timestamp, leaderEpoch  int64; times in microseconds
#   stream, partition          the same in every row, written when the rows are taken
#
# "Ends" begin with a 0: there is one more than there are rows. No end goes beyond INT32_MAX: the rows end before. Texts that are not
# UTF-8 get U+FFFD in place of what is wrong, as everywhere. A name that occurs twice in the headers of a record has its last value,
# as for subscribers: a map has each name once.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memmove

from bascule.kernels.records.records cimport HAS_KEY, HAS_VALUE, BatchView, RecordView, open_body, read_record, view_batch
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.numbers cimport read_bytes
from bascule.kernels.wire.utf8 cimport text_size, write_text

ALL = FILLED_ALL
FULL = FILLED_FULL
END = FILLED_END
DAMAGED = FILLED_DAMAGED

NAMES = (
    "key", "value", "stream", "partition", "offset", "timestamp", "subject", "replySubject", "headers", "leaderEpoch",
)
ROW_BYTES = FIXED_ROW_BYTES
HEADER_BYTES = FIXED_HEADER_BYTES

cdef enum:
    FIXED_ROW_BYTES = 48            # what the budget counts for a row beside its bytes: numbers, ends, bits
    FIXED_HEADER_BYTES = 8          # and for a header: its two ends
    MEMORY_MIN = 4096
    NANOSECONDS = 1000              # in a microsecond


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


cdef inline uint8_t* room(Memory* memory, size_t more) noexcept nogil:
    # Where `more` bytes can be written, behind what is there; NULL when there is no memory.
    cdef size_t wanted = memory.size + more
    cdef size_t capacity
    cdef uint8_t* larger
    if wanted > memory.capacity or memory.data == NULL:
        capacity = memory.capacity * 2
        if capacity < wanted:
            capacity = wanted
        if capacity < memory.usual:
            capacity = memory.usual
        if capacity < MEMORY_MIN:
            capacity = MEMORY_MIN
        larger = <uint8_t*> realloc(memory.data, capacity)
        if larger == NULL:
            return NULL
        memory.data = larger
        memory.capacity = capacity
    return memory.data + memory.size


cdef inline bint fits(Memory* memory, size_t more) noexcept nogil:
    # Whether the data behind int32 ends may grow by so much.
    return more <= <size_t> INT32_MAX and memory.size <= <size_t> INT32_MAX - more


# What follows writes into room that was made before.

cdef inline void put(Memory* memory, const uint8_t* source, size_t size) noexcept nogil:
    if size:
        memcpy(memory.data + memory.size, source, size)
        memory.size += size


cdef inline void put_end(Memory* ends, size_t value) noexcept nogil:
    cdef int32_t end = <int32_t> value
    memcpy(ends.data + ends.size, &end, 4)
    ends.size += 4


cdef inline void put_number(Memory* numbers, int64_t value) noexcept nogil:
    memcpy(numbers.data + numbers.size, &value, 8)
    numbers.size += 8


cdef inline void put_bit(Memory* bits, uint32_t row, bint is_set) noexcept nogil:
    if row & 7 == 0:
        bits.data[bits.size] = 0
        bits.size += 1
    if is_set:
        bits.data[bits.size - 1] |= <uint8_t> (1 << (row & 7))


cdef inline void put_text(Memory* texts, const uint8_t* source, size_t size, size_t written) noexcept nogil:
    write_text(texts.data + texts.size, source, size, written)
    texts.size += written


cdef class ColumnBuffer:
    def __dealloc__(self):
        if self.whole is None:
            free(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __releasebuffer__(self, Py_buffer* buffer):
        pass

    def __len__(self):
        return self.size


cdef ColumnBuffer handed_out(Memory* memory):
    # The memory belongs to the buffer from here on. Arrow wants an address even where there are no bytes.
    cdef ColumnBuffer buffer = ColumnBuffer.__new__(ColumnBuffer)
    if room(memory, 0) == NULL:
        raise MemoryError("no memory for a column")
    buffer.data = memory.data
    buffer.size = memory.size
    memory.usual = memory.size + memory.size // 8
    memory.data = NULL
    memory.size = 0
    memory.capacity = 0
    return buffer


cdef ColumnBuffer beginning_of(ColumnBuffer whole, Py_ssize_t size):
    # The same bytes, fewer of them.
    cdef ColumnBuffer buffer = ColumnBuffer.__new__(ColumnBuffer)
    buffer.whole = whole
    buffer.data = whole.data
    buffer.size = size
    return buffer


cdef int begin_ends(Memory* ends) except -1:
    if room(ends, 4) == NULL:
        raise MemoryError("no memory for a column")
    put_end(ends, 0)
    return 0


cdef void cut(Memory* data, int32_t* ends, uint32_t index, uint32_t count) noexcept nogil:
    # Removes one of `count` pieces from the data; bytes after the last end stay after it.
    cdef int32_t size = ends[index + 1] - ends[index]
    cdef uint32_t later
    memmove(data.data + ends[index], data.data + ends[index + 1], data.size - <size_t> ends[index + 1])
    data.size -= <size_t> size
    for later in range(index + 1, count):
        ends[later] = ends[later + 1] - size


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


cdef class Columns:
    def __cinit__(self, bytes stream not None, int32_t partition, int wanted=WANT_ALL):
        if wanted & ~<int> WANT_ALL:
            raise ValueError(f"{wanted} names columns that there are not")
        self.stream = stream
        self.stream_data = <const uint8_t*> PyBytes_AS_STRING(stream)
        self.stream_size = PyBytes_GET_SIZE(stream)
        self.partition = partition
        self.wanted = wanted
        self.begin()

    def __dealloc__(self):
        cdef Memory* memory = <Memory*> &self.to
        cdef size_t index
        for index in range(sizeof(Buffers) // sizeof(Memory)):
            free(memory[index].data)

    cdef int begin(self) except -1:
        # No rows.
        cdef Memory* memory = <Memory*> &self.to
        cdef size_t index
        for index in range(sizeof(Buffers) // sizeof(Memory)):
            memory[index].size = 0
        self.rows_ = 0
        self.row_bytes = 0
        self.entries = 0
        self.key_nulls = 0
        self.value_nulls = 0
        self.reply_nulls = 0
        begin_ends(&self.to.key_ends)
        begin_ends(&self.to.value_ends)
        begin_ends(&self.to.subject_ends)
        begin_ends(&self.to.reply_ends)
        begin_ends(&self.to.headers_ends)
        begin_ends(&self.to.name_ends)
        begin_ends(&self.to.header_value_ends)
        return 0

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def load(self, batches, int64_t first_offset, int64_t end_offset):
        self.batches = Bytes(batches)
        self.batch_at = 0
        self.record_at = 0
        self.record_index = 0
        self.behind_batch = 0
        self.next_offset_ = first_offset
        self.end_offset = end_offset
        self.last_subject = NULL

    def fill(self, uint32_t rows_max, size_t bytes_max):
        cdef int outcome
        if self.batches is None:
            return FILLED_ALL
        with nogil:
            outcome = self.fill_rows(rows_max, bytes_max)
        if outcome == FILLED_NO_MEMORY:
            raise MemoryError("no memory for columns")
        return outcome

    @property
    def rows(self):
        return self.rows_

    @property
    def nbytes(self):
        return self.row_bytes

    @property
    def batch_position(self):
        return self.batch_at

    @property
    def next_offset(self):
        return self.next_offset_

    cdef int fill_rows(self, uint32_t rows_max, size_t bytes_max) noexcept nogil:
        cdef BatchView batch
        cdef const uint8_t* data = self.batches.data
        cdef size_t size = self.batches.size
        cdef int outcome
        while self.batch_at < size:
            if view_batch(data + self.batch_at, data + size, &batch, False):
                return FILLED_DAMAGED
            if batch.base_offset < self.behind_batch:
                return FILLED_DAMAGED
            if batch.last_offset >= self.next_offset_:
                if batch.base_offset >= self.end_offset:
                    self.next_offset_ = max(self.next_offset_, self.end_offset)
                    return FILLED_END
                outcome = self.fill_batch(&batch, rows_max, bytes_max)
                if outcome != FILLED_ALL:
                    return outcome
                # what compaction took from the end of the batch is behind us too
                self.next_offset_ = batch.last_offset + 1
            self.behind_batch = batch.last_offset + 1
            self.batch_at += batch.length
            self.record_at = 0
            self.record_index = 0
        return FILLED_ALL

    cdef int fill_batch(self, BatchView* batch, uint32_t rows_max, size_t bytes_max) noexcept nogil:
        cdef RecordView record
        cdef const uint8_t* data = self.batches.data
        cdef const uint8_t* at = open_body(batch)
        cdef const uint8_t* behind
        cdef int outcome
        if at == NULL:
            return FILLED_DAMAGED
        if self.record_at:
            at = data + self.record_at
        else:
            self.last_offset = -1
            self.last_timestamp = batch.first_timestamp
        while self.record_index < batch.count:
            behind = read_record(at, batch, &record)
            if behind == NULL or record.offset <= self.last_offset or record.timestamp < self.last_timestamp:
                return FILLED_DAMAGED
            if record.offset >= self.end_offset:
                self.next_offset_ = max(self.next_offset_, self.end_offset)
                return FILLED_END
            if record.offset >= self.next_offset_:
                if self.rows_ >= rows_max or self.row_bytes >= bytes_max:
                    self.record_at = at - data
                    return FILLED_FULL
                outcome = self.append_row(&record, batch.leader_epoch)
                if outcome != FILLED_ALL:
                    self.record_at = at - data
                    return outcome
                self.next_offset_ = record.offset + 1
            self.last_offset = record.offset
            self.last_timestamp = record.timestamp
            at = behind
            self.record_at = at - data
            self.record_index += 1
        if at != batch.end or self.last_timestamp != batch.max_timestamp:
            return FILLED_DAMAGED
        return FILLED_ALL

    # ── a row ────────────────────────────────────────────────────────────────────────────────────

    cdef int append_row(self, RecordView* record, uint64_t leader_epoch) noexcept nogil:
        # First the room for all of it, so that a row is there or not; then nothing fails any more.
        cdef int wanted = self.wanted
        cdef size_t subject_size = 0, reply_size = 0
        cdef bint is_same_subject = False
        cdef size_t row_bytes = FIXED_ROW_BYTES
        cdef int outcome
        if wanted & WANT_KEY:
            if not fits(&self.to.key_data, record.key_size):
                return self.overflow()
            if room(&self.to.key_data, record.key_size) == NULL or room(&self.to.key_ends, 4) == NULL or room(&self.to.key_valid, 1) == NULL:
                return FILLED_NO_MEMORY
            row_bytes += record.key_size
        if wanted & WANT_VALUE:
            if not fits(&self.to.value_data, record.value_size):
                return self.overflow()
            if (
                room(&self.to.value_data, record.value_size) == NULL or room(&self.to.value_ends, 4) == NULL
                or room(&self.to.value_valid, 1) == NULL
            ):
                return FILLED_NO_MEMORY
            row_bytes += record.value_size
        if wanted & WANT_SUBJECT:
            # Records of a batch mostly share the bytes of their subject: those were looked at for the row before.
            is_same_subject = (
                self.rows_ and record.subject == self.last_subject and record.subject_size == self.last_subject_size
            )
            subject_size = self.last_subject_written if is_same_subject else text_size(record.subject, record.subject_size)
            if not fits(&self.to.subject_data, subject_size):
                return self.overflow()
            if room(&self.to.subject_data, subject_size) == NULL or room(&self.to.subject_ends, 4) == NULL:
                return FILLED_NO_MEMORY
            row_bytes += subject_size
        if wanted & WANT_REPLY:
            reply_size = text_size(record.reply, record.reply_size)
            if not fits(&self.to.reply_data, reply_size):
                return self.overflow()
            if room(&self.to.reply_data, reply_size) == NULL or room(&self.to.reply_ends, 4) == NULL or room(&self.to.reply_valid, 1) == NULL:
                return FILLED_NO_MEMORY
            row_bytes += reply_size
        if room(&self.to.offsets, 8) == NULL or room(&self.to.timestamps, 8) == NULL or room(&self.to.epochs, 8) == NULL:
            return FILLED_NO_MEMORY
        if wanted & WANT_HEADERS:
            if room(&self.to.headers_ends, 4) == NULL:
                return FILLED_NO_MEMORY
            if record.header_count:
                outcome = self.append_headers(record)
                if outcome != FILLED_ALL:
                    return outcome
            put_end(&self.to.headers_ends, self.entries)
        if wanted & WANT_KEY:
            put(&self.to.key_data, record.key, record.key_size)
            put_end(&self.to.key_ends, self.to.key_data.size)
            put_bit(&self.to.key_valid, self.rows_, record.flags & HAS_KEY)
            self.key_nulls += not record.flags & HAS_KEY
        if wanted & WANT_VALUE:
            put(&self.to.value_data, record.value, record.value_size)
            put_end(&self.to.value_ends, self.to.value_data.size)
            put_bit(&self.to.value_valid, self.rows_, record.flags & HAS_VALUE)
            self.value_nulls += not record.flags & HAS_VALUE
        if wanted & WANT_SUBJECT:
            if is_same_subject:
                put(&self.to.subject_data, self.to.subject_data.data + self.to.subject_data.size - subject_size, subject_size)
            else:
                put_text(&self.to.subject_data, record.subject, record.subject_size, subject_size)
                self.last_subject = record.subject
                self.last_subject_size = record.subject_size
                self.last_subject_written = subject_size
            put_end(&self.to.subject_ends, self.to.subject_data.size)
        if wanted & WANT_REPLY:
            put_text(&self.to.reply_data, record.reply, record.reply_size, reply_size)
            put_end(&self.to.reply_ends, self.to.reply_data.size)
            put_bit(&self.to.reply_valid, self.rows_, record.reply_size > 0)
            self.reply_nulls += record.reply_size == 0
        put_number(&self.to.offsets, record.offset)
        put_number(&self.to.timestamps, record.timestamp // NANOSECONDS)
        put_number(&self.to.epochs, <int64_t> leader_epoch)
        self.row_bytes += row_bytes
        self.rows_ += 1
        return FILLED_ALL

    cdef int overflow(self) noexcept nogil:
        # The next row would not fit int32 ends: a record by itself always does, or it is none.
        return FILLED_FULL if self.rows_ else FILLED_DAMAGED

    cdef int append_headers(self, RecordView* record) noexcept nogil:
        cdef const uint8_t* at = record.headers
        cdef const uint8_t* end = at + record.headers_size
        cdef const uint8_t* name = NULL
        cdef const uint8_t* value = NULL
        cdef uint32_t name_size = 0, value_size = 0, index
        cdef uint32_t first = self.entries
        cdef size_t names_before = self.to.name_data.size, values_before = self.to.header_value_data.size
        cdef size_t written
        cdef uint32_t again
        for index in range(record.header_count):
            at = read_bytes(at, end, &name, &name_size)
            at = read_bytes(at, end, &value, &value_size) if at != NULL else NULL
            if at == NULL:
                break
            written = text_size(name, name_size)
            if not fits(&self.to.name_data, written) or not fits(&self.to.header_value_data, value_size) or self.entries == INT32_MAX:
                self.take_back(first, names_before, values_before)
                return self.overflow()
            if (
                room(&self.to.name_data, written) == NULL or room(&self.to.name_ends, 4) == NULL
                or room(&self.to.header_value_data, value_size) == NULL or room(&self.to.header_value_ends, 4) == NULL
            ):
                self.take_back(first, names_before, values_before)
                return FILLED_NO_MEMORY
            put_text(&self.to.name_data, name, name_size, written)
            again = self.same_name(first)
            if again < self.entries:
                # The earlier one goes: the later value counts. Rare, so it may cost something.
                self.remove_header(again)
            put_end(&self.to.name_ends, self.to.name_data.size)
            put(&self.to.header_value_data, value, value_size)
            put_end(&self.to.header_value_ends, self.to.header_value_data.size)
            self.entries += 1
        self.row_bytes += (
            self.to.name_data.size - names_before + self.to.header_value_data.size - values_before
            + <size_t> FIXED_HEADER_BYTES * (self.entries - first)
        )
        return FILLED_ALL

    cdef void take_back(self, uint32_t entries, size_t names, size_t values) noexcept nogil:
        self.entries = entries
        self.to.name_data.size = names
        self.to.header_value_data.size = values
        self.to.name_ends.size = self.to.header_value_ends.size = 4 * (<size_t> entries + 1)

    cdef uint32_t same_name(self, uint32_t first) noexcept nogil:
        # Which of the headers first … entries − 1 has the name that was written last and has no end yet; `entries` when none has.
        cdef int32_t* ends = <int32_t*> self.to.name_ends.data
        cdef int32_t begin = ends[self.entries]
        cdef size_t size = self.to.name_data.size - <size_t> begin
        cdef uint32_t index
        for index in range(first, self.entries):
            if <size_t> (ends[index + 1] - ends[index]) == size and memcmp(
                self.to.name_data.data + ends[index], self.to.name_data.data + begin, size
            ) == 0:
                return index
        return self.entries

    cdef void remove_header(self, uint32_t index) noexcept nogil:
        # Takes out name and value of a header; the name behind the last end moves along.
        cut(&self.to.name_data, <int32_t*> self.to.name_ends.data, index, self.entries)
        cut(&self.to.header_value_data, <int32_t*> self.to.header_value_ends.data, index, self.entries)
        self.to.name_ends.size -= 4
        self.to.header_value_ends.size -= 4
        self.entries -= 1

    # ── handing out ──────────────────────────────────────────────────────────────────────────────

    def take(self):
        cdef int wanted = self.wanted
        cdef uint32_t rows = self.rows_
        found = {}
        if wanted & WANT_KEY:
            found["key"] = (
                handed_out(&self.to.key_valid) if self.key_nulls else None, handed_out(&self.to.key_ends), handed_out(&self.to.key_data),
            )
        if wanted & WANT_VALUE:
            found["value"] = (
                handed_out(&self.to.value_valid) if self.value_nulls else None,
                handed_out(&self.to.value_ends), handed_out(&self.to.value_data),
            )
        if wanted & WANT_STREAM:
            found["stream"] = self.repeated_stream()
        if wanted & WANT_PARTITION:
            found["partition"] = (None, self.repeated_partition())
        if wanted & WANT_OFFSET:
            found["offset"] = (None, handed_out(&self.to.offsets))
        if wanted & WANT_TIMESTAMP:
            found["timestamp"] = (None, handed_out(&self.to.timestamps))
        if wanted & WANT_SUBJECT:
            found["subject"] = (None, handed_out(&self.to.subject_ends), handed_out(&self.to.subject_data))
        if wanted & WANT_REPLY:
            found["replySubject"] = (
                handed_out(&self.to.reply_valid) if self.reply_nulls else None,
                handed_out(&self.to.reply_ends), handed_out(&self.to.reply_data),
            )
        if wanted & WANT_HEADERS:
            found["headers"] = (
                None, handed_out(&self.to.headers_ends), handed_out(&self.to.name_ends), handed_out(&self.to.name_data),
                handed_out(&self.to.header_value_ends), handed_out(&self.to.header_value_data),
            )
        if wanted & WANT_EPOCH:
            found["leaderEpoch"] = (None, handed_out(&self.to.epochs))
        self.begin()
        return rows, found

    cdef tuple repeated_stream(self):
        # Written once for all batches that have no more rows.
        cdef size_t written = text_size(self.stream_data, self.stream_size)
        if written * self.rows_ > <size_t> INT32_MAX:
            raise OverflowError("the name of the stream does not fit that many rows")
        if self.stream_rows < self.rows_ or self.stream_ends is None:
            self.repeat_stream(written)
        return (
            None, beginning_of(self.stream_ends, 4 * (<Py_ssize_t> self.rows_ + 1)),
            beginning_of(self.stream_texts, <Py_ssize_t> (written * self.rows_)),
        )

    cdef int repeat_stream(self, size_t written) except -1:
        cdef Memory ends, data
        cdef uint32_t row
        ends.data = data.data = NULL
        ends.size = data.size = ends.capacity = data.capacity = ends.usual = data.usual = 0
        if room(&ends, 4 * (<size_t> self.rows_ + 1)) == NULL or room(&data, written * self.rows_) == NULL:
            free(ends.data)
            raise MemoryError("no memory for a column")
        put_end(&ends, 0)
        for row in range(self.rows_):
            put_text(&data, self.stream_data, self.stream_size, written)
            put_end(&ends, data.size)
        self.stream_ends = handed_out(&ends)
        self.stream_texts = handed_out(&data)
        self.stream_rows = self.rows_
        return 0

    cdef ColumnBuffer repeated_partition(self):
        cdef Memory numbers
        cdef uint32_t row
        if self.partition_rows < self.rows_ or self.partitions is None:
            numbers.data = NULL
            numbers.size = numbers.capacity = numbers.usual = 0
            if room(&numbers, 4 * <size_t> self.rows_) == NULL:
                raise MemoryError("no memory for a column")
            for row in range(self.rows_):
                put_end(&numbers, self.partition)
            self.partitions = handed_out(&numbers)
            self.partition_rows = self.rows_
        return beginning_of(self.partitions, 4 * <Py_ssize_t> self.rows_)
