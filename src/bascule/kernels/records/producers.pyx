# The idempotent producers of a partition and their stored sequences. docs/internals/idempotence.md has the rules.
#
# A table of producers by id (a chained, seeded hash), and a list of them in the order of their last stored message, of which the
# oldest is removed at the limit. Both are plain memory, because scans run without the GIL.
#
#   encoded    entry × count, oldest first:
#              id_size u8 · id · epoch i64 · last_sequence i64 · run_count u8 · (sequence i64 · offset i64 · count i64) …

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

import os

from bascule.kernels.records.records cimport (
    ATTR_PRODUCERS, ATTR_SEALED, HAS_HEADERS, BatchView, RecordView, open_body, read_record, view_header,
)
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.numbers cimport load_u64, read_bytes, store_u64
from bascule.kernels.wire.utf8 cimport is_utf8

NEW = VERDICT_NEW
DUPLICATE = VERDICT_DUPLICATE
FENCED = VERDICT_FENCED
OUT_OF_SEQUENCE = VERDICT_OUT_OF_SEQUENCE

cdef enum:
    BUCKETS_FIRST = 16
    RUNS_FIRST = 2
    ENTRY_FIXED_BYTES = 18          # of an encoded entry, without its id and its runs
    RUN_BYTES = 24

cdef enum:
    SEEN_ID = 1
    SEEN_EPOCH = 2
    SEEN_SEQUENCE = 4
    SEEN_ALL = 7
    SEEN_MALFORMED = 8


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


cdef bint read_decimal(const uint8_t* at, uint32_t size, int64_t* number) noexcept nogil:
    cdef uint32_t index
    cdef int64_t result = 0
    if size == 0 or size > NUMBER_DIGITS_MAX:
        return False
    for index in range(size):
        if not c"0" <= at[index] <= c"9":
            return False
        result = result * 10 + (at[index] - c"0")
    number[0] = result
    return True


cdef void look_at_header(
    const uint8_t* name, uint32_t name_size, const uint8_t* value, uint32_t value_size, ProducerView* view
) noexcept nogil:
    if (name_size != 16 and name_size != 13) or memcmp(name, b"bascule-", 8) != 0:
        return
    if name_size == 13:
        if memcmp(name + 8, b"epoch", 5) == 0:
            view.seen |= SEEN_EPOCH
            if not read_decimal(value, value_size, &view.epoch):
                view.seen |= SEEN_MALFORMED
    elif memcmp(name + 8, b"sequence", 8) == 0:
        view.seen |= SEEN_SEQUENCE
        if not read_decimal(value, value_size, &view.sequence):
            view.seen |= SEEN_MALFORMED
    elif memcmp(name + 8, b"producer", 8) == 0:
        view.seen |= SEEN_ID
        view.id = value
        view.id_size = value_size
        if value_size == 0 or value_size > PRODUCER_ID_BYTES_MAX or not is_utf8(value, value_size):
            view.seen |= SEEN_MALFORMED


cdef int producer_of(ProducerView* view) noexcept nogil:
    if view.seen == 0:
        return 0
    return 1 if view.seen == SEEN_ALL else -1


# ── the table ────────────────────────────────────────────────────────────────────────────────────


cdef inline uint64_t hash_of(const uint8_t* id, uint32_t size, uint64_t seed) noexcept nogil:
    # FNV-1a with a random seed, and a final mix, because buckets use the low bits.
    cdef uint64_t hash = seed ^ <uint64_t> 0xCBF29CE484222325
    cdef uint32_t index
    for index in range(size):
        hash = (hash ^ id[index]) * <uint64_t> 0x100000001B3
    hash ^= hash >> 32
    hash *= <uint64_t> 0xD6E8FEB86659FD93
    return hash ^ (hash >> 32)


cdef inline void free_producer(Producer* producer) noexcept nogil:
    free(producer.runs)
    free(producer)


cdef class ProducerTable:
    def __cinit__(self, uint32_t producers_max):
        if producers_max == 0:
            raise ValueError("a table needs room for at least one producer")
        self.producers_max = producers_max
        self.seed = load_u64(<const uint8_t*> PyBytes_AS_STRING(os.urandom(8)))

    def __dealloc__(self):
        cdef Producer* producer = self.oldest
        cdef Producer* newer
        while producer != NULL:
            newer = producer.newer
            free_producer(producer)
            producer = newer
        free(self.buckets)

    cdef Producer* find(self, const uint8_t* id, uint32_t size) noexcept nogil:
        cdef uint64_t hash
        cdef Producer* producer
        if self.count == 0:
            return NULL
        # One publisher sends many messages in a row.
        producer = self.newest
        if producer.id_size == size and memcmp(producer.id, id, size) == 0:
            return producer
        hash = hash_of(id, size, self.seed)
        producer = self.buckets[hash & (self.bucket_count - 1)]
        while producer != NULL:
            if producer.hash == hash and producer.id_size == size and memcmp(producer.id, id, size) == 0:
                return producer
            producer = producer.next_in_bucket
        return NULL

    cdef int judge_view(self, ProducerView* view, int64_t* offset, int64_t* at_most) noexcept nogil:
        cdef Producer* producer = self.find(view.id, view.id_size)
        cdef Run* run
        cdef uint32_t index
        offset[0] = at_most[0] = -1
        if producer == NULL or producer.run_count == 0 or view.epoch > producer.epoch:
            return VERDICT_NEW if view.sequence == 0 else VERDICT_OUT_OF_SEQUENCE
        if view.epoch < producer.epoch:
            return VERDICT_FENCED
        if view.sequence == producer.last_sequence + 1:
            return VERDICT_NEW
        if view.sequence > producer.last_sequence:
            return VERDICT_OUT_OF_SEQUENCE
        index = producer.run_count
        while index:
            index -= 1
            run = &producer.runs[index]
            if view.sequence >= run.sequence + run.count:
                return VERDICT_DUPLICATE        # in a gap of compaction; the run after it is known
            if view.sequence >= run.sequence:
                offset[0] = at_most[0] = run.offset + (view.sequence - run.sequence)
                return VERDICT_DUPLICATE
            at_most[0] = run.offset - 1
        return VERDICT_DUPLICATE

    cdef bint prepare(self, ProducerView* view) noexcept nogil:
        cdef Producer* producer = self.find(view.id, view.id_size)
        cdef uint32_t capacity
        cdef Run* grown
        if producer == NULL:
            producer = self.add(view.id, view.id_size)
            if producer == NULL:
                return False
        if producer.run_count == producer.run_capacity and producer.run_capacity < RUNS_MAX:
            capacity = producer.run_capacity * 2 if producer.run_capacity else RUNS_FIRST
            grown = <Run*> realloc(producer.runs, capacity * sizeof(Run))
            if grown == NULL:
                return False
            producer.runs = grown
            producer.run_capacity = capacity
        return True

    cdef void note_view(self, ProducerView* view, int64_t offset) noexcept nogil:
        # The message is in the log, so it is noted whatever the rules say.
        cdef Producer* producer = self.find(view.id, view.id_size)
        cdef Run* run
        if producer.run_count == 0 or view.epoch != producer.epoch or view.sequence <= producer.last_sequence:
            producer.epoch = view.epoch
            producer.run_count = 0
        producer.last_sequence = view.sequence
        self.make_newest(producer)
        if producer.run_count:
            run = &producer.runs[producer.run_count - 1]
            if view.sequence == run.sequence + run.count and offset == run.offset + run.count:
                run.count += 1
                return
        if producer.run_count == RUNS_MAX:
            memmove(producer.runs, producer.runs + 1, (RUNS_MAX - 1) * sizeof(Run))
            producer.run_count -= 1
        run = &producer.runs[producer.run_count]
        run.sequence = view.sequence
        run.offset = offset
        run.count = 1
        producer.run_count += 1

    cdef Producer* add(self, const uint8_t* id, uint32_t size) noexcept nogil:
        cdef Producer* producer
        cdef Producer** bucket
        if self.count == self.producers_max:
            self.forget_oldest()
        if self.count >= self.bucket_count and not self.grow():
            return NULL
        producer = <Producer*> calloc(1, sizeof(Producer))
        if producer == NULL:
            return NULL
        producer.hash = hash_of(id, size, self.seed)
        producer.id_size = size
        memcpy(producer.id, id, size)
        bucket = &self.buckets[producer.hash & (self.bucket_count - 1)]
        producer.next_in_bucket = bucket[0]
        bucket[0] = producer
        producer.older = self.newest
        if self.newest != NULL:
            self.newest.newer = producer
        else:
            self.oldest = producer
        self.newest = producer
        self.count += 1
        return producer

    cdef bint grow(self) noexcept nogil:
        cdef uint32_t bucket_count = self.bucket_count * 2 if self.bucket_count else BUCKETS_FIRST
        cdef Producer** buckets = <Producer**> calloc(bucket_count, sizeof(Producer*))
        cdef Producer* producer = self.oldest
        cdef Producer** bucket
        if buckets == NULL:
            return self.bucket_count > 0    # without memory the chains get longer
        while producer != NULL:
            bucket = &buckets[producer.hash & (bucket_count - 1)]
            producer.next_in_bucket = bucket[0]
            bucket[0] = producer
            producer = producer.newer
        free(self.buckets)
        self.buckets = buckets
        self.bucket_count = bucket_count
        return True

    cdef void forget_oldest(self) noexcept nogil:
        cdef Producer* producer = self.oldest
        cdef Producer** at = &self.buckets[producer.hash & (self.bucket_count - 1)]
        while at[0] != producer:
            at = &at[0].next_in_bucket
        at[0] = producer.next_in_bucket
        self.unlink(producer)
        self.count -= 1
        self.forgotten += 1
        free_producer(producer)

    cdef void unlink(self, Producer* producer) noexcept nogil:
        if producer.older != NULL:
            producer.older.newer = producer.newer
        else:
            self.oldest = producer.newer
        if producer.newer != NULL:
            producer.newer.older = producer.older
        else:
            self.newest = producer.older

    cdef void make_newest(self, Producer* producer) noexcept nogil:
        if self.newest == producer:
            return
        self.unlink(producer)
        producer.older = self.newest
        producer.newer = NULL
        if self.newest != NULL:
            self.newest.newer = producer
        else:
            self.oldest = producer
        self.newest = producer

    # ── from the log ─────────────────────────────────────────────────────────────────────────────

    cdef int note_records(self, const uint8_t* at, const uint8_t* end, int64_t first_offset, int64_t end_offset) noexcept nogil:
        # Returns 0; −1 for invalid batches or a marked sealed one; −2 without memory.
        cdef BatchView batch
        cdef RecordView record
        cdef ProducerView view
        cdef const uint8_t* next_record
        cdef uint32_t index
        while at < end:
            if view_header(at, end, &batch) or batch.length > <uint64_t> (end - at):
                return -1
            if batch.attributes & ATTR_PRODUCERS and batch.last_offset >= first_offset and batch.base_offset < end_offset:
                next_record = open_body(&batch)
                for index in range(batch.count):
                    if next_record != NULL:
                        next_record = read_record(next_record, &batch, &record)
                    if next_record == NULL:
                        return -1
                    if not record.flags & HAS_HEADERS or not first_offset <= record.offset < end_offset:
                        continue
                    read_producer(&record, &view)
                    if producer_of(&view) > 0:
                        if not self.prepare(&view):
                            return -2
                        self.note_view(&view, record.offset)
            at += batch.length
        return 0

    def note_batches(self, data, int64_t first_offset, int64_t end_offset):
        cdef Bytes source = Bytes(data)
        cdef int outcome
        with nogil:
            outcome = self.note_records(source.data, source.data + source.size, first_offset, end_offset)
        if outcome == -2:
            raise MemoryError("no memory for the producers of a partition")
        if outcome:
            raise ValueError("a batch with producers cannot be read")

    # ── for Python ───────────────────────────────────────────────────────────────────────────────

    def judge(self, bytes producer not None, int64_t epoch, int64_t sequence):
        cdef ProducerView view
        cdef int64_t offset = -1, at_most = -1
        view_of(producer, epoch, sequence, &view)
        verdict = self.judge_view(&view, &offset, &at_most)
        return verdict, offset, at_most

    def note(self, bytes producer not None, int64_t epoch, int64_t sequence, int64_t offset):
        cdef ProducerView view
        view_of(producer, epoch, sequence, &view)
        if not self.prepare(&view):
            raise MemoryError("no memory for the producers of a partition")
        self.note_view(&view, offset)

    def entries(self):
        cdef list found = []
        cdef Producer* producer = self.oldest
        cdef uint32_t index
        while producer != NULL:
            if producer.run_count:
                runs = [
                    (producer.runs[index].sequence, producer.runs[index].offset, producer.runs[index].count)
                    for index in range(producer.run_count)
                ]
                found.append((
                    PyBytes_FromStringAndSize(<const char*> producer.id, producer.id_size), producer.epoch,
                    producer.last_sequence, runs,
                ))
            producer = producer.newer
        return found

    def encode(self):
        cdef size_t size = 0
        cdef Producer* producer = self.oldest
        cdef bytes result
        cdef uint8_t* out
        cdef uint32_t index
        while producer != NULL:
            if producer.run_count:
                size += ENTRY_FIXED_BYTES + producer.id_size + producer.run_count * RUN_BYTES
            producer = producer.newer
        result = PyBytes_FromStringAndSize(NULL, size)
        out = <uint8_t*> PyBytes_AS_STRING(result)
        producer = self.oldest
        while producer != NULL:
            if producer.run_count:
                out[0] = <uint8_t> producer.id_size
                memcpy(out + 1, producer.id, producer.id_size)
                out += 1 + producer.id_size
                store_u64(out, <uint64_t> producer.epoch)
                store_u64(out + 8, <uint64_t> producer.last_sequence)
                out[16] = <uint8_t> producer.run_count
                out += 17
                for index in range(producer.run_count):
                    store_u64(out, <uint64_t> producer.runs[index].sequence)
                    store_u64(out + 8, <uint64_t> producer.runs[index].offset)
                    store_u64(out + 16, <uint64_t> producer.runs[index].count)
                    out += RUN_BYTES
            producer = producer.newer
        return result

    @staticmethod
    def decode(data, uint32_t producers_max):
        cdef Bytes source = Bytes(data)
        cdef ProducerTable table = ProducerTable(producers_max)
        cdef const uint8_t* at = source.data
        cdef const uint8_t* end = at + source.size
        while at < end:
            at = decode_entry(table, at, end)
            if at == NULL:
                raise ValueError("the bytes are not a producer table")
        return table

    def copy(self):
        return ProducerTable.decode(self.encode(), self.producers_max)


cdef const uint8_t* decode_entry(ProducerTable table, const uint8_t* at, const uint8_t* end) except? NULL:
    cdef ProducerView view
    cdef Producer* producer
    cdef Run* runs
    cdef uint32_t index, run_count
    memset(&view, 0, sizeof(ProducerView))
    view.id_size = at[0]
    if view.id_size == 0 or view.id_size > PRODUCER_ID_BYTES_MAX or end - at < <Py_ssize_t> (ENTRY_FIXED_BYTES + view.id_size):
        return NULL
    view.id = at + 1
    at += 1 + view.id_size
    run_count = at[16]
    if not 0 < run_count <= RUNS_MAX or end - at < <Py_ssize_t> (17 + run_count * RUN_BYTES):
        return NULL
    if table.find(view.id, view.id_size) != NULL:
        return NULL
    producer = table.add(view.id, view.id_size)
    runs = NULL if producer == NULL else <Run*> malloc(RUNS_MAX * sizeof(Run) if run_count > RUNS_FIRST else RUNS_FIRST * sizeof(Run))
    if runs == NULL:
        raise MemoryError("no memory for the producers of a partition")
    producer.runs = runs
    producer.run_capacity = RUNS_MAX if run_count > RUNS_FIRST else RUNS_FIRST
    producer.run_count = run_count
    producer.epoch = <int64_t> load_u64(at)
    producer.last_sequence = <int64_t> load_u64(at + 8)
    at += 17
    for index in range(run_count):
        runs[index].sequence = <int64_t> load_u64(at)
        runs[index].offset = <int64_t> load_u64(at + 8)
        runs[index].count = <int64_t> load_u64(at + 16)
        at += RUN_BYTES
    return at


cdef void read_producer(RecordView* record, ProducerView* view) noexcept nogil:
    # The three headers of a record; read_record() has checked all lengths.
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* end = at + record.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef uint32_t name_size = 0, value_size = 0
    memset(view, 0, sizeof(ProducerView))
    while at != NULL and at < end:
        at = read_bytes(at, end, &name, &name_size)
        if at != NULL:
            at = read_bytes(at, end, &value, &value_size)
        if at != NULL:
            look_at_header(name, name_size, value, value_size, view)


cdef int view_of(bytes producer, int64_t epoch, int64_t sequence, ProducerView* view) except -1:
    # The caller owns the bytes.
    if not 0 < PyBytes_GET_SIZE(producer) <= PRODUCER_ID_BYTES_MAX or epoch < 0 or sequence < 0:
        raise ValueError("a producer has an id of 1 to 64 bytes, and numbers of at least 0")
    memset(view, 0, sizeof(ProducerView))
    view.id = <const uint8_t*> PyBytes_AS_STRING(producer)
    view.id_size = <uint32_t> PyBytes_GET_SIZE(producer)
    view.epoch = epoch
    view.sequence = sequence
    return 0


def marks(data):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = source.data
    cdef const uint8_t* end = at + source.size
    cdef BatchView batch
    cdef bint marked = False, sealed = False
    while at < end and not view_header(at, end, &batch) and batch.length <= <uint64_t> (end - at):
        if batch.attributes & ATTR_PRODUCERS:
            marked = True
            if batch.attributes & ATTR_SEALED:
                sealed = True
        at += batch.length
    return marked, sealed
