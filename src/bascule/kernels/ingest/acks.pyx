# Acks on their way to publishers: an Ack envelope published to the inbox, or a call within this process when the inbox is one of ours.
#
# An inbox of this process is `<prefix><number>`: the number is that of a receiver. Acks of partitions led elsewhere come over NATS and
# go the same way from AckSink on.
#
# Acks for the inboxes of another broker leave together, once for each batch: a bundle, published to the prefix without its last dot.
#
#     seal (with a cluster secret: net/nats/seal.py) · size u32, little-endian · Ack · size · Ack …
#
# The inbox in each Ack says which receiver it is for.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from bascule.kernels.envelope.ack_object cimport ack_object
from bascule.kernels.envelope.messages cimport (
    ACK_ALL, ACK_LEADER, ACK_OK, ACK_TOO_LARGE, ack_envelope_size, ack_size, read_ack, write_ack, write_ack_envelope,
)
from bascule.kernels.batches.collected cimport NO_DUPLICATE, AckEntry
from bascule.kernels.ingest.sink cimport PreparedBatch, is_judgement
from bascule.kernels.nats.protocol cimport begin_pub, end_pub, is_subject
from bascule.kernels.wire.numbers cimport load_u32, store_u32

cdef enum:
    KEPT_FIRST = 4096
    BUNDLE_BYTES_MAX = 1 << 18      # of acks in one bundle
    BUNDLES_MAX = 64                # brokers whose bundles are remembered; an inbox of a publisher may name any broker
    SEAL_BYTES_MAX = 512
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


cdef class AckBundle:
    def __dealloc__(self):
        free(self.data)


cdef class AckWriter:
    def __init__(self, NatsReader reader not None, AckRouter router not None, bytes family not None=b""):
        self.reader = reader
        self.router = router
        self.family = family
        self.bundles = {}
        self.filled = []

    cdef int send(self, AckView* ack) except -1:
        cdef size_t size
        cdef uint8_t* at
        if self.router.is_local(ack.ack_inbox, ack.ack_inbox_size):
            return self.router.route(ack, ack.ack_inbox, ack.ack_inbox_size)
        size = PyBytes_GET_SIZE(self.family)
        if size and ack.ack_inbox_size > size and memcmp(ack.ack_inbox, PyBytes_AS_STRING(self.family), size) == 0:
            return self.bundle(ack)
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

    cdef int bundle(self, AckView* ack) except -1:
        # The subject ends before the last dot of the inbox, behind which is the receiver's number.
        cdef size_t place = ack.ack_inbox_size - 1
        cdef size_t wanted = 4 + ack_size(ack)
        cdef AckBundle bundle = self.last_bundle
        cdef bytes subject
        cdef uint8_t* at
        cdef size_t capacity
        while place > 0 and ack.ack_inbox[place] != c".":
            place -= 1
        if place < <size_t> PyBytes_GET_SIZE(self.family) or wanted > BUNDLE_BYTES_MAX or not is_subject(ack.ack_inbox, place):
            self.unsendable += 1
            return 0
        if (
            bundle is None or <size_t> PyBytes_GET_SIZE(bundle.subject) != place
            or memcmp(PyBytes_AS_STRING(bundle.subject), ack.ack_inbox, place) != 0
        ):
            subject = PyBytes_FromStringAndSize(<const char*> ack.ack_inbox, place)
            bundle = self.bundles.get(subject)
            if bundle is None:
                if len(self.bundles) >= BUNDLES_MAX:
                    self.send_bundles()
                    self.bundles.clear()
                bundle = AckBundle.__new__(AckBundle)
                bundle.subject = subject
                self.bundles[subject] = bundle
            self.last_bundle = bundle
        if bundle.count and bundle.size + wanted + SEAL_BYTES_MAX > min(<size_t> BUNDLE_BYTES_MAX, <size_t> self.reader.max_payload):
            self.send_bundle(bundle)
        if bundle.size + wanted > bundle.capacity:
            capacity = bundle.capacity if bundle.capacity else KEPT_FIRST
            while capacity < bundle.size + wanted:
                capacity *= 2
            at = <uint8_t*> realloc(bundle.data, capacity)
            if at == NULL:
                self.unsendable += 1
                return 0
            bundle.data = at
            bundle.capacity = capacity
        if bundle.count == 0:
            self.filled.append(bundle)
        at = bundle.data + bundle.size
        store_u32(at, <uint32_t> (wanted - 4))
        write_ack(at + 4, ack)
        bundle.size += wanted
        bundle.count += 1
        return 0

    cdef int send_bundles(self) except -1:
        cdef list filled = self.filled
        cdef AckBundle bundle
        if filled:
            self.filled = []
            for bundle in filled:
                self.send_bundle(bundle)
        return 0

    cdef int send_bundle(self, AckBundle bundle) except -1:
        cdef bytes payload, front
        cdef size_t size, front_size
        cdef uint64_t count = bundle.count
        cdef uint8_t* at = NULL
        if count == 0:
            return 0
        payload = PyBytes_FromStringAndSize(<const char*> bundle.data, bundle.size)
        bundle.size = bundle.count = 0
        if self.reader.connected:
            front = b"" if self.seal is None else <bytes?> self.seal(bundle.subject, payload)
            front_size = PyBytes_GET_SIZE(front)
            size = front_size + PyBytes_GET_SIZE(payload)
            if size <= self.reader.max_payload:
                at = begin_pub(
                    self.reader.output, <const uint8_t*> PyBytes_AS_STRING(bundle.subject), PyBytes_GET_SIZE(bundle.subject), size
                )
        if at == NULL:
            self.unsendable += count
            return 0
        memcpy(at, PyBytes_AS_STRING(front), front_size)
        memcpy(at + front_size, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        end_pub(self.reader.output, size)
        self.sent += count
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
        self.send_bundles()

    def reject(self, PreparedBatch batch not None, int32_t error, int64_t reception_timestamp=0, int64_t commit_timestamp=0):
        if error == ACK_OK:
            raise ValueError("a rejected batch needs an error")
        self.send_errors(batch, error, WITHOUT_ERROR, reception_timestamp, commit_timestamp)

    def write_errors(
        self, PreparedBatch batch not None, int64_t reception_timestamp=0, int64_t commit_timestamp=0, bint judged=True
    ):
        self.send_errors(batch, ACK_OK, CERTAIN, reception_timestamp, commit_timestamp)
        if judged:
            self.send_errors(batch, ACK_OK, JUDGED, reception_timestamp, commit_timestamp)

    def has_judgements(self, PreparedBatch batch not None):
        cdef uint32_t index
        for index in range(batch.collected.entry_count if batch.collected.errors else 0):
            if is_judgement(batch.collected.entries[index].error):
                return True
        return False

    def write_judgements(self, PreparedBatch batch not None, int32_t error=ACK_OK, int64_t commit_timestamp=0):
        self.send_errors(batch, error, JUDGED, 0, commit_timestamp)

    cdef int send_errors(
        self, PreparedBatch batch, int32_t error, int which, int64_t reception_timestamp, int64_t commit_timestamp
    ) except -1:
        # The errors found while scanning, or `error` in their place. The offset is 0: there is none.
        cdef uint32_t index
        cdef AckEntry* entry
        cdef AckView ack
        for index in range(batch.collected.entry_count):
            entry = &batch.collected.entries[index]
            if which != (WITHOUT_ERROR if entry.error == ACK_OK else JUDGED if is_judgement(entry.error) else CERTAIN):
                continue
            batch.view(entry, &ack)
            if error != ACK_OK:
                ack.error = error
            ack.reception_timestamp = reception_timestamp
            ack.commit_timestamp = 0 if ack.error == ACK_TOO_LARGE else commit_timestamp
            self.send(&ack)
        return self.send_bundles()


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
        cdef const uint8_t[::1] opened
        cdef bytes name, payload
        while at < end:
            subject_size = load_u32(at)
            payload_size = load_u32(at + 4)
            subject = at + 8
            at = subject + subject_size + payload_size
            if self.open is None:
                self.invalid += not self.route_bundle(subject + subject_size, payload_size)
                continue
            name = PyBytes_FromStringAndSize(<const char*> subject, subject_size)
            payload = PyBytes_FromStringAndSize(<const char*> subject + subject_size, payload_size)
            found = self.open(name, payload)
            if found is None:
                continue  # counted by the one that refused it
            opened = found
            self.invalid += opened.shape[0] == 0 or not self.route_bundle(&opened[0], opened.shape[0])
        return 0

    cdef bint route_bundle(self, const uint8_t* at, size_t size) except -1:
        # False when it is no bundle; the acks before the first wrong byte count.
        cdef const uint8_t* end = at + size
        cdef uint32_t ack_bytes
        cdef AckView ack
        while at < end:
            if end - at < 4:
                return False
            ack_bytes = load_u32(at)
            at += 4
            if ack_bytes > <size_t> (end - at) or not read_ack(at, ack_bytes, &ack):
                return False
            if not self.router.is_local(ack.ack_inbox, ack.ack_inbox_size):
                return False
            self.router.route(&ack, ack.ack_inbox, ack.ack_inbox_size)
            at += ack_bytes
        return size > 0
