# Acks on their way to publishers: an Ack envelope published to the inbox, or a call within this process when the inbox is one of ours.
#
# An inbox of this process is `<prefix><number>`: the number is that of a receiver. Acks of partitions led elsewhere come over NATS to
# the same inboxes and go the same way from AckSink on.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from bascule.kernels.envelope.ack_object cimport ack_object
from bascule.kernels.envelope.messages cimport (
    ACK_ALL, ACK_LEADER, ACK_OK, ACK_TOO_LARGE, ack_envelope_size, read_ack_envelope, write_ack_envelope,
)
from bascule.kernels.ingest.collected cimport NO_DUPLICATE, AckEntry
from bascule.kernels.ingest.sink cimport PreparedBatch
from bascule.kernels.nats.protocol cimport begin_pub, end_pub, is_subject
from bascule.kernels.wire.numbers cimport load_u32, store_u32

cdef enum:
    KEPT_FIRST = 4096
    KEPT_MAX = 1 << 20              # what is kept for the next read; one large read does not stay for ever
    DIGITS_MAX = 19                 # of a receiver's number: more may not fit 64 bits


cdef class AckReceiver:
    cdef int on_ack(self, AckView* ack) except -1:
        return 0


cdef class CallbackReceiver(AckReceiver):
    cdef object callback

    def __init__(self, callback):
        self.callback = callback

    cdef int on_ack(self, AckView* ack) except -1:
        self.callback(ack_object(ack))
        return 0


cdef class AckRouter:
    def __init__(self, bytes prefix not None, on_fault=None):
        self.prefix = prefix
        self.receivers = {}
        self.on_fault = on_fault
        self.last_key = 0

    cdef bint is_local(self, const uint8_t* inbox, size_t size) noexcept:
        cdef size_t prefix = PyBytes_GET_SIZE(self.prefix)
        return size > prefix and memcmp(inbox, PyBytes_AS_STRING(self.prefix), prefix) == 0

    cdef int route(self, AckView* ack, const uint8_t* inbox, size_t size) except -1:
        cdef size_t index = PyBytes_GET_SIZE(self.prefix)
        cdef uint64_t number = 0
        cdef PyObject* found = NULL
        cdef AckReceiver receiver
        if size - index <= DIGITS_MAX and not (inbox[index] == c"0" and size - index > 1):
            while index < size and c"0" <= inbox[index] <= c"9":
                number = number * 10 + (inbox[index] - c"0")
                index += 1
        if index == size:
            if number != self.last_number:
                self.last_number = number
                self.last_key = number
            found = PyDict_GetItem(self.receivers, self.last_key)
        if found == NULL:
            self.unknown += 1
            return 0
        receiver = <AckReceiver?> <object> found
        self.delivered += 1
        try:
            receiver.on_ack(ack)
        except Exception as error:
            # one session's trouble; the acks behind this one are others'
            if self.on_fault is None:
                raise
            self.on_fault(error)
        return 0


cdef class AckWriter:
    def __init__(self, NatsReader reader not None, AckRouter router not None):
        self.reader = reader
        self.router = router

    cdef int send(self, AckView* ack) except -1:
        cdef size_t size
        cdef uint8_t* at
        if self.router.is_local(ack.ack_inbox, ack.ack_inbox_size):
            return self.router.route(ack, ack.ack_inbox, ack.ack_inbox_size)
        # A payload above the server's bound would cost us the connection, and correlation ids are as long as publishers like.
        size = ack_envelope_size(ack)
        if not self.reader.connected or size > self.reader.max_payload or not is_subject(ack.ack_inbox, ack.ack_inbox_size):
            self.unsendable += 1
            return 0
        at = begin_pub(self.reader.output, ack.ack_inbox, ack.ack_inbox_size, size)
        if at == NULL:
            self.unsendable += 1
            return 0
        write_ack_envelope(at, ack)
        end_pub(self.reader.output, size)
        self.sent += 1
        return 0

    def acknowledge(
        self, PreparedBatch batch not None, int which, int64_t base_offset, int64_t reception_timestamp, int64_t commit_timestamp,
    ):
        cdef uint32_t index
        cdef AckEntry* entry
        cdef AckView ack
        if which != ACK_LEADER and which != ACK_ALL:
            raise ValueError(f"no acks are sent for policy {which}")
        for index in range(batch.collected.entry_count):
            entry = &batch.collected.entries[index]
            if entry.ack_policy != which or entry.error != ACK_OK:
                continue
            batch.view(entry, &ack)
            if entry.original == NO_DUPLICATE:
                ack.offset = base_offset + entry.record
                ack.reception_timestamp = reception_timestamp
            else:
                # when the original came is not known here
                ack.offset = entry.original
                ack.duplicate = True
            ack.commit_timestamp = commit_timestamp
            self.send(&ack)

    def reject(self, PreparedBatch batch not None, int32_t error, int64_t reception_timestamp=0, int64_t commit_timestamp=0):
        if error == ACK_OK:
            raise ValueError("a rejected batch needs an error")
        self.send_errors(batch, error, False, reception_timestamp, commit_timestamp)

    def write_errors(self, PreparedBatch batch not None, int64_t reception_timestamp=0, int64_t commit_timestamp=0):
        self.send_errors(batch, ACK_OK, True, reception_timestamp, commit_timestamp)

    cdef int send_errors(
        self, PreparedBatch batch, int32_t error, bint recorded, int64_t reception_timestamp, int64_t commit_timestamp
    ) except -1:
        # Either the errors found while scanning, or `error` for all messages without one. The offset is 0: there is none.
        cdef uint32_t index
        cdef AckEntry* entry
        cdef AckView ack
        for index in range(batch.collected.entry_count):
            entry = &batch.collected.entries[index]
            if (entry.error != ACK_OK) != recorded:
                continue
            batch.view(entry, &ack)
            if not recorded:
                ack.error = error
            ack.reception_timestamp = reception_timestamp
            ack.commit_timestamp = 0 if ack.error == ACK_TOO_LARGE else commit_timestamp
            self.send(&ack)
        return 0


cdef class AckSink(MessageSink):
    def __cinit__(self, AckRouter router not None):
        self.router = router
        self.delivers = True

    def __dealloc__(self):
        free(self.kept)

    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        cdef size_t wanted = self.kept_size + 8 + message.subject_size + message.payload_size
        cdef size_t capacity = self.kept_capacity if self.kept_capacity else KEPT_FIRST
        cdef uint8_t* at
        if wanted > self.kept_capacity:
            while capacity < wanted:
                capacity *= 2
            at = <uint8_t*> realloc(self.kept, capacity)
            if at == NULL:
                return -1
            self.kept = at
            self.kept_capacity = capacity
        at = self.kept + self.kept_size
        store_u32(at, <uint32_t> message.subject_size)
        store_u32(at + 4, <uint32_t> message.payload_size)
        memcpy(at + 8, message.subject, message.subject_size)
        memcpy(at + 8 + message.subject_size, message.payload, message.payload_size)
        self.kept_size = wanted
        return 0

    cdef int deliver(self) except -1:
        # The memory is ours alone while receivers run: one of them might bring the next read about.
        cdef uint8_t* kept = self.kept
        cdef size_t size = self.kept_size
        cdef size_t capacity = self.kept_capacity
        self.kept = NULL
        self.kept_size = self.kept_capacity = 0
        try:
            self.route_all(kept, size)
        finally:
            if self.kept == NULL and capacity <= KEPT_MAX:
                self.kept = kept
                self.kept_capacity = capacity
            else:
                free(kept)
        return 0

    cdef int route_all(self, const uint8_t* at, size_t size) except -1:
        cdef const uint8_t* end = at + size
        cdef const uint8_t* subject
        cdef uint32_t subject_size, payload_size
        cdef AckView ack
        while at < end:
            subject_size = load_u32(at)
            payload_size = load_u32(at + 4)
            subject = at + 8
            at = subject + subject_size + payload_size
            if read_ack_envelope(subject + subject_size, payload_size, &ack) and self.router.is_local(subject, subject_size):
                self.router.route(&ack, subject, subject_size)
            else:
                self.invalid += 1
        return 0
