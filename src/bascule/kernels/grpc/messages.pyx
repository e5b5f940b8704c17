# gRPC messages in the DATA of a stream. See messages.pxd.
#
# Prefixes and messages lie in DATA frames as they come: many in one, or one in many. A message that lies whole in a frame is handed on where it
# lies; others are put together first.

import zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from bascule.kernels.headers.request_head cimport ENCODING_GZIP, ENCODING_IDENTITY
from bascule.kernels.http2.connection cimport Http2Connection
from bascule.kernels.http2.frames cimport load_be32, store_be32
from bascule.kernels.http2.sender cimport NOWHERE, Http2Stream
from bascule.kernels.wire.output cimport OutputBuffer


NO_MEMORY_LEFT = "the server has no memory left for calls of this connection; read the responses, end calls, and retry"


cdef str too_large(size_t size, size_t most):
    return f"a message of {size} bytes is larger than {most} bytes"


cdef class MessageStream(Http2Stream):
    cdef int on_message(self, const uint8_t* data, size_t size) except -1:
        return 0

    cdef int on_room(self) except -1:
        return 0

    cdef int break_off(self, int status, str text) except -1:
        return 0

    cdef int fault(self, object error) except -1:
        return 0

    # ── from below ──

    cdef int received_data(self, const uint8_t* data, size_t size) except -1:
        cdef size_t taken
        try:
            while size and not self.finished:
                if self.assembly is None and size >= PREFIX_SIZE and load_be32(data + 1) <= size - PREFIX_SIZE:
                    taken = PREFIX_SIZE + <size_t> load_be32(data + 1)
                    self.hand_on(data, taken)
                else:
                    taken = self.assemble(data, size)
                data += taken
                size -= taken
        except Exception as error:
            self.fault(error)
        return 0

    cdef size_t assemble(self, const uint8_t* data, size_t size) except? 0:
        # The next bytes of a message that does not lie whole in a frame; handed on when they are its last.
        cdef OutputBuffer parts = self.assembly
        cdef Http2Connection connection = self.connection
        cdef size_t have, wanted, taken
        if parts is None:
            parts = self.assembly = connection.take_buffer()
        have = parts.size()
        wanted = PREFIX_SIZE
        if have >= PREFIX_SIZE:
            wanted += load_be32(parts.data + parts.start + 1)
        taken = min(size, wanted - have)
        if parts.put(data, taken):
            raise MemoryError("no memory for a message")
        connection.assembly_bytes += taken
        have += taken
        if have == PREFIX_SIZE:
            wanted = PREFIX_SIZE + <size_t> load_be32(parts.data + parts.start + 1)
            if wanted - PREFIX_SIZE > connection.limits.message_bytes_max:
                self.break_off(STATUS_RESOURCE_EXHAUSTED, too_large(wanted - PREFIX_SIZE, connection.limits.message_bytes_max))
                return taken
        if have < wanted or have < PREFIX_SIZE:
            if connection.assembly_bytes > connection.limits.assembly_bytes_max or self.is_without_memory():
                self.break_off(STATUS_RESOURCE_EXHAUSTED, "too many unfinished messages at the same time")
            return taken
        # The buffer is not the stream's any more: whatever the hook does, its bytes stay.
        self.assembly = None
        connection.assembly_bytes -= have
        self.hand_on(parts.data + parts.start, have)
        connection.return_buffer(parts)
        return taken

    cdef int hand_on(self, const uint8_t* prefix, size_t size) except -1:
        size -= PREFIX_SIZE
        if size > self.connection.limits.message_bytes_max:
            self.break_off(STATUS_RESOURCE_EXHAUSTED, too_large(size, self.connection.limits.message_bytes_max))
            return 0
        if prefix[0] == 0:
            return self.deliver_message(prefix + PREFIX_SIZE, size)
        if prefix[0] > 1:
            self.break_off(STATUS_INTERNAL, "a message does not begin with 0 or 1")
            return 0
        if self.encoding == ENCODING_IDENTITY:
            self.break_off(STATUS_INTERNAL, "a message is compressed and grpc-encoding does not say how")
            return 0
        return self.hand_on_compressed(prefix + PREFIX_SIZE, size)

    cdef int hand_on_compressed(self, const uint8_t* data, size_t size) except -1:
        cdef size_t most = self.connection.limits.message_bytes_max
        cdef bytes plain
        self.connection.until_clock = 0         # a few bytes may become megabytes
        decompressor = zlib.decompressobj(31 if self.encoding == ENCODING_GZIP else 15)
        try:
            plain = decompressor.decompress(PyBytes_FromStringAndSize(<const char*> data, size), most + 1)
        except zlib.error:
            self.break_off(STATUS_INTERNAL, "a message cannot be decompressed")
            return 0
        if <size_t> PyBytes_GET_SIZE(plain) > most:
            self.break_off(STATUS_RESOURCE_EXHAUSTED, f"a message is larger than {most} bytes when it is decompressed")
            return 0
        if not decompressor.eof:
            self.break_off(STATUS_INTERNAL, "a message cannot be decompressed")
            return 0
        return self.deliver_message(<const uint8_t*> PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))

    cdef int deliver_message(self, const uint8_t* data, size_t size) except -1:
        cdef Http2Connection connection = self.connection
        self.message_count += 1
        if self.unread is None:
            return self.on_message(data, size)
        # Kept within the bound of unfinished messages; the peer gets no window meanwhile.
        connection.assembly_bytes += size
        if connection.memory is not None:
            connection.memory.charge(size)
        self.unread.append(PyBytes_FromStringAndSize(<const char*> data, size))
        self.withhold(True)
        if connection.assembly_bytes > connection.limits.assembly_bytes_max or self.is_without_memory():
            self.break_off(STATUS_RESOURCE_EXHAUSTED, "too many messages before the client is known")
        return 0

    cdef int drop_unread(self) except -1:
        cdef list unread = self.unread
        cdef bytes message
        self.unread = None
        if unread is not None and self.connection is not None:
            for message in unread:
                self.connection.assembly_bytes -= PyBytes_GET_SIZE(message)
                if self.connection.memory is not None:
                    self.connection.memory.release(PyBytes_GET_SIZE(message))
        return 0

    cdef int may_send(self) except -1:
        if self.sealed:
            return 0
        try:
            self.on_room()
        except Exception as error:
            self.fault(error)
        return 0

    cdef int drop_assembly(self) except -1:
        if self.assembly is not None:
            self.connection.assembly_bytes -= self.assembly.size()
            self.connection.return_buffer(self.assembly)
            self.assembly = None
        return 0

    cdef bint is_without_memory(self) noexcept:
        return self.connection.memory is not None and self.connection.memory.is_exceeded()

    cdef size_t held_bytes(self) noexcept:
        cdef size_t held = self.outgoing.capacity + self.kept_bytes
        if self.assembly is not None:
            held += self.assembly.capacity
        return held

    # ── for subclasses ──

    cdef bytes keep(self, const uint8_t* data, size_t size):
        if self.connection.memory is not None:
            self.kept_bytes += size
            self.connection.memory.charge(size)
            if self.is_without_memory():
                self.break_off(STATUS_RESOURCE_EXHAUSTED, NO_MEMORY_LEFT)
                return None
        return PyBytes_FromStringAndSize(<const char*> data, size)

    cdef int drop_kept(self) except -1:
        if self.kept_bytes and self.connection.memory is not None:
            self.connection.memory.release(self.kept_bytes)
        self.kept_bytes = 0
        return 0

    cdef uint8_t* begin_message(self, size_t size) except NULL:
        cdef OutputBuffer outgoing = NOWHERE if self.sealed else self.outgoing
        cdef uint8_t* at
        if size > <size_t> 0xFFFFFFFF:
            raise ValueError("a message has at most 4 GiB")
        at = outgoing.reserve(PREFIX_SIZE + size)
        if at == NULL:
            raise MemoryError("no memory for a message")
        return at + PREFIX_SIZE

    cdef int end_message(self, size_t size) except -1:
        cdef OutputBuffer outgoing = self.outgoing
        cdef uint8_t* at
        if self.sealed:
            return 0
        at = outgoing.data + outgoing.end
        at[0] = 0
        store_be32(at + 1, <uint32_t> size)
        outgoing.commit(PREFIX_SIZE + size)
        return 0

    cdef int send_message(self, const uint8_t* data, size_t size) except -1:
        cdef uint8_t* at
        if self.sealed:
            return 0
        at = self.begin_message(size)
        if size:
            memcpy(at, data, size)
        self.end_message(size)
        return self.want_flush()

    cdef int want_flush(self) except -1:
        if not self.closed and self.connection is not None:
            self.connection.enqueue(self)
            return self.connection.notify()
        return 0

    cdef size_t room(self) except? 0:
        cdef size_t waiting, share
        if self.sealed or self.connection is None:
            return 0
        waiting = self.outgoing.size()
        share = self.connection.outgoing_share()
        if waiting < share and self.send_window > 0 and self.connection.send_window > 0:
            return share - waiting
        self.want_flush()               # on_room() comes by way of the queue
        return 0

    cpdef withhold(self, bint on):
        self.withheld = on
        if not on and self.connection is not None:
            self.connection.give_window(self)
