# Ingest: every message of a partition's NATS subject becomes a record, and its publisher is remembered if it waits for an ack.
#
# Scanning runs without the GIL over a whole read, so nothing here touches the count of a Python object: a sink fills plain memory, and
# take() turns that into PreparedBatch objects. Memory comes from a pool and goes back to it with release().
#
#   payload                          record
#   publish envelope                 its key, value and headers
#   anything else                    the payload is the value, whatever it looks like
#   NATS headers                     headers; those of an envelope win over them
#   header bascule-tombstone         with an empty value: the record has no value, and not this header

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from bascule.kernels.batches.collected cimport NO_DUPLICATE, free_memory, make_room
from bascule.kernels.batches.pool cimport BatchPool
from bascule.kernels.envelope.messages cimport (
    ACK_ALL, ACK_INCORRECT_OFFSET, ACK_INVALID_PRODUCER, ACK_LEADER, ACK_OK, ACK_OUT_OF_SEQUENCE, ACK_PRODUCER_FENCED, ACK_TOO_LARGE,
    ACK_UNKNOWN, HEADER_ENTRIES_MAX, collect_headers, is_tombstone_header, keep_last, read_publish_envelope,
)
from bascule.kernels.envelope.nats_headers cimport split_nats_headers
from bascule.kernels.ingest.copies cimport (
    COPIES_KEY_SIZE, NotedHashes, forget_all, forget_early, is_copy, make_copies, note_hash,
)
from bascule.kernels.ingest.held_messages cimport HeldMessages, are_held_messages, hold_message, next_held
from bascule.kernels.nats.protocol cimport is_subject
from bascule.kernels.records.builder cimport BatchBuilder
from bascule.kernels.records.producers cimport VERDICT_DUPLICATE, VERDICT_FENCED, VERDICT_NEW, look_at_header, producer_of
from bascule.kernels.records.records cimport ATTR_PRODUCERS, HAS_KEY, HAS_VALUE, HEADER_SIZE
from bascule.kernels.wire.buffers cimport Bytes, prefetch
from bascule.kernels.wire.numbers cimport varint_size, write_bytes

cdef enum:
    RECORD_OVERHEAD_MAX = 64        # lengths, flags and deltas of one record

# Knowledge of idempotent producers.
cdef enum:
    PRODUCERS_UNKNOWN = 0           # the first message of a producer is held, with all later messages
    PRODUCERS_KNOWN = 1
    PRODUCERS_IGNORED = 2           # nothing will be stored

# What became of a record.
cdef enum:
    STORED = 0
    TOO_LARGE = 1
    NO_MEMORY = 2


# ── scanning ─────────────────────────────────────────────────────────────────────────────────────


cdef class PartitionSink(MessageSink):
    def __cinit__(
        self, BatchPool pool not None, *, bytes stream not None, uint32_t partition, bytes base_subject not None,
        size_t payload_bytes_max, uint32_t batch_records_max, size_t batch_bytes_max, bint concurrency_control=False,
        int64_t next_offset=0,
    ):
        self.pool = pool
        self.builder = pool.idle_builder()
        self.stream = stream
        self.partition = partition
        self.base_subject = base_subject
        self.payload_bytes_max = payload_bytes_max
        self.batch_records_max = max(1, min(batch_records_max, self.builder.records_max))
        self.batch_bytes_max = min(batch_bytes_max, self.builder.batch_bytes_max)
        self.concurrency_control = concurrency_control
        self.next_offset = next_offset

    def __dealloc__(self):
        cdef size_t index
        for index in range(self.full_count):
            free_memory(&self.full[index])
        free(self.full)
        free(self.current.entries)
        free(self.current.texts)
        free(self.held.data)
        free(self.noted.hashes)
        forget_all(&self.copies)

    @property
    def has_waiting_acks(self):
        return self.full_count > 0 or (self.held.count > 0 and not self.holds_all) or (self.is_filling and self.current.entry_count > 0)

    @property
    def waiting_records(self):
        return self.full_records + (self.builder.records if self.is_filling else 0)

    @property
    def waiting_bytes(self):
        if not self.is_filling or not (self.builder.records or self.current.entry_count):
            return self.full_bytes + self.held.size
        return self.full_bytes + self.held.size + self.builder.size + self.current.texts_size

    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        self.received += 1
        if self.is_watching:
            return self.watch(message)
        return self.hold(message) if self.held.count else self.accept(message)

    cdef int receive(self, NatsMessage* message) noexcept nogil:
        if self.is_watching:
            return self.watch(message)
        return self.hold(message) if self.held.count else self.accept(message)

    cdef int accept(self, NatsMessage* message) noexcept nogil:
        cdef PublishView view
        cdef PublishView* envelope = NULL
        if read_publish_envelope(message.payload, message.payload_size, &view):
            envelope = &view
        if message.payload_size + message.headers_size > self.payload_bytes_max:
            return self.refuse(message, envelope, ACK_TOO_LARGE)
        if self.dropping:
            return self.refuse(message, envelope, ACK_UNKNOWN)
        return self.store(message, envelope)

    cdef int store(self, NatsMessage* message, PublishView* view) noexcept nogil:
        cdef RecordView record
        cdef ProducerView producer
        cdef int64_t expected = 0 if view == NULL else view.expected_offset
        cdef int outcome
        cdef bint is_sequenced = False
        memset(&record, 0, sizeof(RecordView))
        record.subject = message.subject
        record.subject_size = <uint32_t> message.subject_size
        record.reply = message.reply
        record.reply_size = <uint32_t> message.reply_size
        record.flags = HAS_VALUE
        if view == NULL:
            record.value = message.payload
            record.value_size = <uint32_t> message.payload_size
        else:
            record.value = view.value
            record.value_size = view.value_size
            if view.has_key:
                record.key = view.key
                record.key_size = view.key_size
                record.flags = HAS_KEY | HAS_VALUE
        outcome = STORED
        if message.headers != NULL or (view != NULL and view.header_entries):
            producer.seen = 0
            outcome = self.set_headers(message, view, &record, &producer)
            if producer.seen and outcome == STORED and self.producer_state != PRODUCERS_IGNORED:
                if self.judge(message, view, &producer) != VERDICT_NEW:
                    return 0
                is_sequenced = True
        if self.concurrency_control and expected != -1 and expected != self.next_offset:
            return self.refuse(message, view, ACK_INCORRECT_OFFSET)
        if is_sequenced and not self.producers.prepare(&producer):
            outcome = NO_MEMORY
        if outcome == STORED:
            outcome = self.add(&record)
        if outcome == TOO_LARGE:
            return self.refuse(message, view, ACK_TOO_LARGE)
        if outcome == NO_MEMORY:
            self.lost += 1
            return -1
        if is_sequenced:
            self.builder.attributes |= ATTR_PRODUCERS
            self.current.is_sequenced = True
            self.producers.note_view(&producer, self.next_offset)
        self.next_offset += 1
        if view != NULL and view.ack_inbox_size and (view.ack_policy == ACK_LEADER or view.ack_policy == ACK_ALL):
            # without memory for the entry the record is there all the same, and its publisher hears nothing
            self.note(message, view, ACK_OK, NO_DUPLICATE)
        return 0

    cdef int judge(self, NatsMessage* message, PublishView* view, ProducerView* producer) noexcept nogil:
        # A message of an idempotent producer. VERDICT_NEW: to be stored; anything else has been dealt with.
        cdef int64_t original, at_most
        cdef int verdict
        if producer_of(producer) < 0:
            self.refuse(message, view, ACK_INVALID_PRODUCER)
            return -1
        if self.producer_state == PRODUCERS_UNKNOWN:
            self.hold(message)
            return -1
        verdict = self.producers.judge_view(producer, &original, &at_most)
        if verdict == VERDICT_DUPLICATE:
            self.repeated(message, view, original, at_most)
        elif verdict == VERDICT_FENCED:
            self.refuse(message, view, ACK_PRODUCER_FENCED)
        elif verdict != VERDICT_NEW:
            self.refuse(message, view, ACK_OUT_OF_SEQUENCE)
        return verdict

    cdef int repeated(self, NatsMessage* message, PublishView* view, int64_t original, int64_t at_most) noexcept nogil:
        # Its ack goes with the batch that is being filled: then the original, which came before, is in the log.
        self.duplicates += 1
        if view == NULL or view.ack_inbox_size == 0 or (view.ack_policy != ACK_LEADER and view.ack_policy != ACK_ALL):
            return 0
        if self.is_filling and self.current.entry_count >= self.batch_records_max:
            self.close_current()
        if not self.begin():
            return 0
        if self.builder.records == 0:
            self.current.base_offset = self.next_offset
        if self.note(message, view, ACK_OK, original) == 0:
            self.current.is_sequenced = True
            if at_most > self.current.originals_to:
                self.current.originals_to = at_most
        return 0

    cdef int add(self, RecordView* record) noexcept nogil:
        cdef size_t size = (
            <size_t> record.key_size + record.value_size + record.headers_size + record.subject_size + record.reply_size
        )
        if self.is_filling and (
            self.builder.records >= self.batch_records_max
            or self.current.entry_count >= self.batch_records_max
            or (self.builder.records and self.builder.size + size + RECORD_OVERHEAD_MAX > self.batch_bytes_max)
        ):
            if not self.close_current():
                return NO_MEMORY
        if not self.begin():
            return NO_MEMORY
        self.builder.refused_size = 0
        if self.builder.add_record(record, 0) == 0:
            if self.builder.records == 1:
                self.current.base_offset = self.next_offset
            return STORED
        # Its own size is too much for any batch, or there is no memory: then the builder has said nothing about sizes.
        return TOO_LARGE if self.builder.refused_size or self.builder.check_sizes(record) else NO_MEMORY

    cdef bint begin(self) noexcept nogil:
        if self.is_filling:
            return True
        if not self.pool.take(&self.current):
            return False
        self.builder.buffer = self.current.buffer
        self.builder.capacity = self.current.capacity
        self.current.buffer = NULL
        self.current.capacity = 0
        self.builder.size = HEADER_SIZE
        self.builder.records = 0
        self.builder.last_time_delta = 0
        self.builder.subject_at = self.builder.subject_size = 0
        self.builder.attributes = 0
        self.current.base_offset = self.next_offset
        self.current.is_sequenced = False
        self.current.originals_to = -1
        self.is_filling = True
        return True

    cdef bint close_current(self) noexcept nogil:
        # The current batch is full. If there is no memory to close it, it is filled further.
        cdef size_t capacity
        cdef Collected* grown
        if self.full_count == self.full_capacity:
            capacity = self.full_capacity * 2 if self.full_capacity else 4
            grown = <Collected*> realloc(self.full, capacity * sizeof(Collected))
            if grown == NULL:
                return False
            self.full = grown
            self.full_capacity = capacity
        self.current.buffer = self.builder.buffer
        self.current.capacity = self.builder.capacity
        self.current.size = self.builder.size
        self.current.records = self.builder.records
        self.current.subject_at = self.builder.subject_at
        self.current.subject_size = self.builder.subject_size
        self.current.attributes = self.builder.attributes
        self.builder.buffer = NULL
        self.builder.capacity = 0
        self.full[self.full_count] = self.current
        self.full_count += 1
        self.full_records += self.current.records
        self.full_bytes += self.current.size + self.current.texts_size
        memset(&self.current, 0, sizeof(Collected))
        self.is_filling = False
        return True

    cdef int refuse(self, NatsMessage* message, PublishView* view, int error) noexcept nogil:
        # Not stored. Every publisher with an inbox gets the error, also one whose policy asks for no acks.
        self.refused += 1
        if view == NULL or view.ack_inbox_size == 0:
            return 0
        if self.is_filling and self.current.entry_count >= self.batch_records_max:
            self.close_current()
        if self.begin():
            self.note(message, view, error, NO_DUPLICATE)
        return 0

    cdef int note(self, NatsMessage* message, PublishView* view, int error, int64_t original) noexcept nogil:
        cdef Collected* current = &self.current
        cdef AckEntry* entry
        cdef uint8_t* at
        # The inbox goes into a line of protocol, and a publisher chose it.
        if not is_subject(view.ack_inbox, view.ack_inbox_size):
            return 0
        if not make_room(current, <size_t> view.ack_inbox_size + view.correlation_id_size + message.subject_size):
            return -1
        entry = &current.entries[current.entry_count]
        entry.record = self.builder.records - 1 if error == ACK_OK and original == NO_DUPLICATE else 0
        entry.original = original
        entry.ack_policy = view.ack_policy
        entry.error = error
        entry.inbox_size = view.ack_inbox_size
        entry.correlation_id_size = view.correlation_id_size
        entry.msg_subject_size = <uint32_t> message.subject_size
        entry.texts_at = current.texts_size
        at = current.texts + current.texts_size
        memcpy(at, view.ack_inbox, view.ack_inbox_size)
        at += view.ack_inbox_size
        if view.correlation_id_size:
            memcpy(at, view.correlation_id, view.correlation_id_size)
            at += view.correlation_id_size
        if message.subject_size:
            memcpy(at, message.subject, message.subject_size)
            at += message.subject_size
        current.texts_size = at - current.texts
        current.entry_count += 1
        prefetch(at, 1)
        prefetch(entry + 1, 1)
        if error != ACK_OK:
            current.errors += 1
        elif view.ack_policy == ACK_LEADER:
            current.leader_acks += 1
        else:
            current.all_acks += 1
        return 0

    cdef int set_headers(
        self, NatsMessage* message, PublishView* view, RecordView* record, ProducerView* producer
    ) noexcept nogil:
        cdef HeaderView* headers = self.pool.headers
        cdef Py_ssize_t count = 0, kept = 0, more, index
        cdef size_t size = 0
        cdef uint8_t* at
        if message.headers != NULL:
            count = split_nats_headers(message.headers, message.headers_size, headers, HEADER_ENTRIES_MAX)
        if count >= 0 and view != NULL and view.header_entries:
            more = collect_headers(view, headers + count, HEADER_ENTRIES_MAX - count)
            count = count + more if more >= 0 else -1
        if count >= 0:
            count = keep_last(headers, count)
        if count < 0:
            return TOO_LARGE
        for index in range(count):
            if record.value_size == 0 and is_tombstone_header(headers[index].name, headers[index].name_size):
                record.flags &= ~HAS_VALUE
                continue
            if kept != index:
                headers[kept] = headers[index]
            kept += 1
            size += varint_size(headers[index].name_size) + headers[index].name_size
            size += varint_size(headers[index].value_size) + headers[index].value_size
            look_at_header(headers[index].name, headers[index].name_size, headers[index].value, headers[index].value_size, producer)
        if kept == 0:
            return STORED
        at = self.pool.room_for_headers(size)
        if at == NULL:
            return NO_MEMORY
        record.headers = at
        record.headers_size = <uint32_t> size
        record.header_count = <uint32_t> kept
        for index in range(kept):
            at = write_bytes(at, headers[index].name, headers[index].name_size)
            at = write_bytes(at, headers[index].value, headers[index].value_size)
        return STORED

    # ── idempotent producers ─────────────────────────────────────────────────────────────────────

    @property
    def is_holding(self):
        return self.held.count > 0 and not self.holds_all

    @property
    def knows_producers(self):
        return self.producer_state == PRODUCERS_KNOWN

    cdef int hold(self, NatsMessage* message) noexcept nogil:
        if hold_message(&self.held, message):
            return 0
        self.lost += 1
        return -1

    cdef int replay(self, int error) noexcept nogil:
        # Accepts the held messages, or refuses them with an error.
        cdef HeldMessages held = self.held
        cdef const uint8_t* at = held.data
        cdef NatsMessage message
        cdef PublishView view
        memset(&self.held, 0, sizeof(HeldMessages))
        while at < held.data + held.size:
            at = next_held(at, &message)
            if error == ACK_OK:
                self.accept(&message)
            elif read_publish_envelope(message.payload, message.payload_size, &view):
                self.refuse(&message, &view, error)
            else:
                self.refuse(&message, NULL, error)
        free(held.data)
        return 0

    def learn_producers(self, ProducerTable table not None, int64_t next_offset):
        if self.full_count or self.is_filling and (self.builder.records or self.current.entry_count):
            raise AssertionError("what was collected has to be taken first")
        self.producers = table
        self.producer_state = PRODUCERS_KNOWN
        self.next_offset = next_offset
        self.replay(ACK_OK)

    def forget_producers(self, int error, bint for_good=False):
        self.producer_state = PRODUCERS_IGNORED if for_good else PRODUCERS_UNKNOWN
        if for_good:
            self.end_watching()
        if not self.holds_all:
            self.replay(error)

    # ── hand-overs ───────────────────────────────────────────────────────────────────────────────

    cdef int watch(self, NatsMessage* message) noexcept nogil:
        # A message during a hand-over, or shortly after one.
        if self.is_noting:
            note_hash(&self.noted, message)
        if self.holds_all:
            if self.has_overflowed:
                self.lost += 1
                return -1
            if self.held_bytes_max and self.held.size + message.payload_size + message.headers_size > self.held_bytes_max:
                self.has_overflowed = True
                self.lost += self.held.count + 1
                free(self.held.data)
                memset(&self.held, 0, sizeof(HeldMessages))
                return -1
            return self.hold(message)
        if self.copies.missing and is_copy(&self.copies, message):
            self.copied += 1
            if self.copies.missing == 0:
                self.is_watching = self.is_noting
            return 0
        return self.hold(message) if self.held.count else self.accept(message)

    @property
    def copies_missing(self):
        return self.copies.missing

    @property
    def noted_hashes(self):
        return self.noted.count

    def note_received(self, bytes key not None):
        check_key(key)
        self.noted.count = 0
        self.noted.is_incomplete = False
        memcpy(self.noted.key, PyBytes_AS_STRING(key), COPIES_KEY_SIZE)
        self.is_noting = self.is_watching = True

    def hold_all(self, size_t bytes_max=0):
        self.held_bytes_max = bytes_max
        self.holds_all = self.is_watching = True

    cdef void end_watching(self) noexcept nogil:
        self.is_noting = self.holds_all = self.has_overflowed = False
        self.is_watching = self.copies.missing > 0
        free(self.noted.hashes)
        memset(&self.noted, 0, sizeof(NotedHashes))

    def release_held(self):
        cdef HeldMessages held = self.held
        self.end_watching()
        memset(&self.held, 0, sizeof(HeldMessages))
        self.receive_all(held)

    def give_up(self):
        cdef bytes hashes = None
        cdef bytes messages = PyBytes_FromStringAndSize(<const char*> self.held.data, self.held.size)
        if not self.noted.is_incomplete:
            hashes = PyBytes_FromStringAndSize(<const char*> self.noted.hashes, self.noted.count * sizeof(uint64_t))
        self.drop_held()
        return hashes, messages

    def forget_copies(self):
        forget_all(&self.copies)
        self.is_watching = self.is_noting or self.holds_all

    def drop_held(self):
        self.end_watching()
        self.forget_copies()
        free(self.held.data)
        memset(&self.held, 0, sizeof(HeldMessages))

    def take_over(self, bytes key not None, bytes hashes not None, size_t early, bytes messages not None):
        cdef size_t count = PyBytes_GET_SIZE(hashes) // sizeof(uint64_t)
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(messages)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(messages)
        cdef HeldMessages held = self.held
        cdef NatsMessage message
        check_key(key)
        if PyBytes_GET_SIZE(hashes) % sizeof(uint64_t) or early > count or not are_held_messages(at, end - at):
            raise ValueError("the messages of the leader before are malformed")
        self.end_watching()
        memcpy(self.copies.key, PyBytes_AS_STRING(key), COPIES_KEY_SIZE)
        if not make_copies(&self.copies, <const uint8_t*> PyBytes_AS_STRING(hashes), count, early):
            raise MemoryError("no memory for the messages of the leader before")
        memset(&self.held, 0, sizeof(HeldMessages))
        while at < end:
            at = next_held(at, &message)
            self.received += 1
            self.hold(&message) if self.held.count else self.accept(&message)
        self.is_watching = self.copies.missing > 0
        self.receive_all(held)
        forget_early(&self.copies)
        self.is_watching = self.copies.missing > 0

    cdef int receive_all(self, HeldMessages held) noexcept nogil:
        # Messages that were held, in their order; frees them.
        cdef const uint8_t* at = held.data
        cdef NatsMessage message
        while at < held.data + held.size:
            at = next_held(at, &message)
            self.receive(&message)
        free(held.data)
        return 0

    def take(self):
        cdef list batches = []
        cdef size_t index
        if self.is_filling and (self.builder.records or self.current.entry_count):
            if not self.close_current():
                raise MemoryError("no memory for a batch")
        for index in range(self.full_count):
            batches.append(self.prepared(&self.full[index]))
        self.full_count = 0
        self.full_records = 0
        self.full_bytes = 0
        return batches

    cdef PreparedBatch prepared(self, Collected* collected):
        cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
        batch.sink = self
        batch.record_count = collected.records
        batch.record_bytes = collected.size if collected.records else 0
        if collected.records:
            batch.records = self.pool.builder_around(collected)
        batch.collected = collected[0]
        memset(collected, 0, sizeof(Collected))
        return batch


cdef int check_key(bytes key) except -1:
    if PyBytes_GET_SIZE(key) != COPIES_KEY_SIZE:
        raise ValueError(f"a key has {COPIES_KEY_SIZE} bytes, not {len(key)}")
    return 0


def nats_headers(block):
    cdef Bytes source = Bytes(block)
    cdef HeaderView* headers
    cdef Py_ssize_t count, index
    headers = <HeaderView*> malloc(HEADER_ENTRIES_MAX * sizeof(HeaderView))
    if headers == NULL:
        raise MemoryError("no memory for the headers of a message")
    try:
        count = split_nats_headers(source.data, source.size, headers, HEADER_ENTRIES_MAX)
        return [
            (headers[index].name[:headers[index].name_size], headers[index].value[:headers[index].value_size])
            for index in range(count)
        ]
    finally:
        free(headers)


# ── what was collected ───────────────────────────────────────────────────────────────────────────


cdef class PreparedBatch:
    def __init__(self):
        raise TypeError("batches come from PartitionSink.take()")

    def __dealloc__(self):
        free_memory(&self.collected)

    @property
    def builder(self):
        return self.records

    @property
    def count(self):
        return self.record_count

    @property
    def nbytes(self):
        return self.record_bytes

    @property
    def base_offset(self):
        return self.collected.base_offset

    @property
    def is_sequenced(self):
        return self.collected.is_sequenced

    @property
    def originals_to(self):
        return self.collected.originals_to

    @property
    def has_leader_acks(self):
        return self.collected.leader_acks > 0

    @property
    def has_all_acks(self):
        return self.collected.all_acks > 0

    @property
    def has_errors(self):
        return self.collected.errors > 0

    cdef void view(self, AckEntry* entry, AckView* ack) noexcept:
        cdef const uint8_t* at = self.collected.texts + entry.texts_at
        memset(ack, 0, sizeof(AckView))
        ack.stream = <const uint8_t*> PyBytes_AS_STRING(self.sink.stream)
        ack.stream_size = <uint32_t> PyBytes_GET_SIZE(self.sink.stream)
        ack.partition_subject = <const uint8_t*> PyBytes_AS_STRING(self.sink.base_subject)
        ack.partition_subject_size = <uint32_t> PyBytes_GET_SIZE(self.sink.base_subject)
        ack.ack_inbox = at
        ack.ack_inbox_size = entry.inbox_size
        ack.correlation_id = at + entry.inbox_size
        ack.correlation_id_size = entry.correlation_id_size
        ack.msg_subject = at + entry.inbox_size + entry.correlation_id_size
        ack.msg_subject_size = entry.msg_subject_size
        ack.ack_policy = entry.ack_policy
        ack.error = <int32_t> entry.error

    def release_records(self):
        cdef Collected memory
        if self.records is None:
            return
        memset(&memory, 0, sizeof(Collected))
        builder = self.records
        self.records = None
        self.sink.pool.builder_back(builder, &memory)
        self.sink.pool.give_back(&memory)

    def hold(self):
        self.holds += 1

    def release(self):
        cdef BatchBuilder builder = self.records
        if self.holds:
            self.holds -= 1
            return
        self.records = None
        if builder is not None:
            self.sink.pool.builder_back(builder, &self.collected)
        self.sink.pool.give_back(&self.collected)
        memset(&self.collected, 0, sizeof(Collected))
