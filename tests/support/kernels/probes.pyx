# Kernel classes that tests and benchmarks subclass or read from Python.

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from bascule.kernels.grpc.client cimport ClientStream
from bascule.kernels.headers.hpack cimport HpackDecoder
from bascule.kernels.headers.response_head cimport decode_response
from bascule.kernels.nats.protocol cimport MessageSink, NatsMessage
from bascule.kernels.wire.buffers cimport Bytes


cdef class PyClientStream(ClientStream):
    cdef int on_headers(self) except -1:
        self.headers_received()
        return 0

    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        self.message(PyBytes_FromStringAndSize(<const char*> data, size))
        return 0

    cdef int on_messages_done(self) except -1:
        self.messages_done()
        return 0

    cdef int on_room(self) except -1:
        self.writable()
        return 0

    cdef int on_finished(self, int status, bytes message) except -1:
        self.ended(status, self.status_text)
        return 0

    def headers_received(self):
        pass

    def message(self, message):
        pass

    def messages_done(self):
        pass

    def writable(self):
        pass

    def ended(self, status, text):
        pass


cdef class CountingSink(MessageSink):
    cdef readonly uint64_t messages
    cdef readonly uint64_t payload_bytes

    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        self.messages += 1
        self.payload_bytes += message.payload_size
        return 0


def read_response(HpackDecoder decoder, block):
    cdef Bytes given = Bytes(block)
    return decode_response(decoder, given.data, given.size)
