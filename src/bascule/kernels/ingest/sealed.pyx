# Ingest of internal streams under a cluster secret: only messages that a broker has sealed for this broker become records.
#
#   payload      seal (net/nats/seal.py) · receiver size u8 · receiver · publish envelope
#
# `receiver` is the id of the server that led the partition when the message was sent. A seal's counter is good once for each receiving
# channel, so that without it a message that one leader has stored could be sent again to the next leader.

from weakref import WeakValueDictionary

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from bascule.kernels.batches.pool cimport BatchPool
from bascule.kernels.envelope.messages cimport ACK_NOT_STORED, PublishView, read_publish_envelope
from bascule.kernels.ingest.sink cimport PartitionSink
from bascule.kernels.nats.protocol cimport NatsMessage
from bascule.kernels.wire.output cimport OutputBuffer


cdef struct Kept:
    uint64_t number                 # of the sink
    size_t subject_size
    size_t payload_size


cdef class SealedQueue:
    # The messages of one read for all internal partitions, in the order of arrival: a channel accepts counters in about that order.
    cdef object opener
    cdef bytes receiver
    cdef OutputBuffer kept
    cdef object sinks               # by number
    cdef uint64_t last_number

    def __init__(self, opener, bytes receiver not None):
        self.opener = opener
        self.receiver = receiver
        self.kept = OutputBuffer()
        self.sinks = WeakValueDictionary()

    def sink(self, BatchPool pool not None, **settings):
        cdef SealedSink sink = SealedSink.__new__(SealedSink, pool, **settings)
        self.last_number += 1
        sink.queue = self
        sink.number = self.last_number
        sink.delivers = True
        self.sinks[sink.number] = sink
        return sink

    cdef int keep(self, uint64_t number, NatsMessage* message) noexcept nogil:
        cdef Kept head
        cdef size_t total = sizeof(Kept) + message.subject_size + message.payload_size
        cdef uint8_t* at = self.kept.reserve(total)
        if at == NULL:
            return -1
        head.number = number
        head.subject_size = message.subject_size
        head.payload_size = message.payload_size
        memcpy(at, &head, sizeof(Kept))
        at += sizeof(Kept)
        memcpy(at, message.subject, message.subject_size)
        at += message.subject_size
        if message.payload_size:
            memcpy(at, message.payload, message.payload_size)
        self.kept.commit(total)
        return 0

    cdef int open_all(self) except -1:
        cdef bytes read = PyBytes_FromStringAndSize(<const char*> self.kept.data + self.kept.start, self.kept.size())
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(read)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(read)
        cdef Kept head
        cdef bytes subject, payload
        cdef SealedSink sink
        self.kept.clear()
        while at < end:
            memcpy(&head, at, sizeof(Kept))
            at += sizeof(Kept)
            subject = PyBytes_FromStringAndSize(<const char*> at, head.subject_size)
            at += head.subject_size
            payload = PyBytes_FromStringAndSize(<const char*> at, head.payload_size)
            at += head.payload_size
            sink = self.sinks.get(head.number)
            if sink is not None and (opened := self.opener(subject, payload)) is not None:
                sink.take_opened(subject, opened, self.receiver)
        return 0


cdef class SealedSink(PartitionSink):
    cdef SealedQueue queue
    cdef uint64_t number
    cdef object __weakref__

    def __init__(self):
        raise TypeError("sealed sinks come from SealedQueue.sink()")

    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        return self.queue.keep(self.number, message)

    cdef int deliver(self) except -1:
        return self.queue.open_all()

    cdef int take_opened(self, bytes subject, const uint8_t[::1] opened, bytes receiver) except -1:
        # The seal covers neither NATS headers nor a reply subject: brokers send none, and none are stored.
        cdef size_t receiver_size = opened[0] if opened.shape[0] else 0
        cdef NatsMessage message
        cdef PublishView view
        self.received += 1
        if opened.shape[0] <= <Py_ssize_t> receiver_size + 1:
            self.refused += 1
            return 0
        message.subject = <const uint8_t*> PyBytes_AS_STRING(subject)
        message.subject_size = PyBytes_GET_SIZE(subject)
        message.reply = message.headers = NULL
        message.reply_size = message.headers_size = 0
        message.payload = &opened[receiver_size + 1]
        message.payload_size = opened.shape[0] - receiver_size - 1
        if not read_publish_envelope(message.payload, message.payload_size, &view):
            self.refused += 1
        elif <size_t> PyBytes_GET_SIZE(receiver) != receiver_size or memcmp(PyBytes_AS_STRING(receiver), &opened[1], receiver_size):
            # Its sender has older metadata, or it was recorded and sent again.
            self.refuse(&message, &view, ACK_NOT_STORED)
        else:
            self.receive(&message)
        return 0
