# NATS for other kernels: received messages, and lines that publish.
#
# A reader scans whole reads without the GIL and passes every message to the sink of its subscription. A message points into the
# reader's buffer, which is valid until on_message() returns.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from bascule.kernels.nats.lines cimport Line
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    # nats-server ends a connection that sends a line of more than 4096 bytes (its max_control_line): a subject and a reply
    # of this size fit one together with the rest of the line.
    SUBJECT_SIZE_MAX = 1900

cdef struct NatsMessage:
    const uint8_t* subject
    size_t subject_size
    const uint8_t* reply            # NULL when the publisher expects no answer
    size_t reply_size
    const uint8_t* headers          # "NATS/1.0…\r\n\r\n" as it came, NULL when there are none
    size_t headers_size
    const uint8_t* payload
    size_t payload_size

# A place in the table of subscriptions; free when it has no sink.
cdef struct Slot:
    uint64_t sid
    void* sink

ctypedef void* SinkPointer


cdef class NatsReader


cdef class MessageSink:
    # Receives the messages of a subscription. A sink may serve several subscriptions of one reader.
    cdef bint is_touched            # got a message since the reader's touched() was last asked
    cdef bint delivers              # deliver() is to be called at the end of each read that touched this sink
    cdef NatsReader reader          # None while it serves no subscription
    cdef Py_ssize_t subscriptions
    cdef int on_message(self, NatsMessage* message) noexcept nogil     # 0; anything else counts the message as dropped
    cdef int deliver(self) except -1                                   # with the GIL, for sinks that set `delivers`


cdef class NatsReader:
    cdef readonly OutputBuffer output       # bytes to the server: PONGs of the reader, PUBs of the kernels that publish
    cdef public bint connected              # logged in; nothing may be published before, since it would be discarded
    cdef public size_t max_payload          # limit of the server, which ends the connection of a client that exceeds it
    cdef public object on_fault             # called with the exception that a callback raised
    cdef readonly uint64_t messages         # handed to sinks
    cdef readonly uint64_t message_bytes    # their headers and payloads
    cdef readonly uint64_t unknown          # messages of subscriptions that are gone
    cdef readonly uint64_t dropped          # messages that a sink refused
    cdef size_t message_bytes_max
    cdef size_t line_bytes_max
    cdef size_t buffer_bytes_max            # only a message that needs it makes the buffer larger
    cdef uint8_t* data                      # data[scanned:filled] is received and not handed on yet
    cdef size_t scanned
    cdef size_t filled
    cdef size_t capacity
    cdef size_t needed                      # bytes that the line or message at data[scanned] takes, 0 when that is not known
    cdef uint32_t reads_since_large
    cdef int broken                         # a Fault: nothing more is scanned until reset()
    cdef Slot* slots                        # open addressing over sids; sinks are borrowed, `sinks` holds the references
    cdef size_t slot_mask
    cdef dict sinks
    cdef SinkPointer* touched_sinks         # borrowed as well; `leaving` holds those that were detached meanwhile
    cdef size_t touched_count
    cdef size_t touched_capacity
    cdef bint must_deliver
    cdef list leaving

    cdef int scan(self, Line* line) noexcept nogil
    cdef int take_message(self, Line* line, const uint8_t* payload) noexcept nogil
    cdef int hand_over(self, void* sink, NatsMessage* message, size_t size) noexcept nogil
    cdef Slot* find(self, uint64_t sid) noexcept nogil
    cdef tuple scan_all(self)
    cdef int make_room(self) except -1
    cdef int resize(self, size_t capacity) except -1
    cdef int grow_table(self) except -1
    cdef int expect_touches(self) except -1
    cdef void free_slot(self, Slot* slot) noexcept nogil
    cdef int deliver_all(self) except -1


# Publishing. These functions write whole protocol lines; subjects must be valid (see is_subject): a space or a line break in a subject
# would begin another command.

cdef bint is_subject(const uint8_t* subject, size_t size) noexcept nogil

# Return room for the payload after its PUB line; end_pub() with the same size must follow.
# NULL, and nothing written, when there is no memory.
cdef uint8_t* begin_pub(
    OutputBuffer output, const uint8_t* subject, size_t subject_size, size_t payload_size
) noexcept nogil
cdef uint8_t* begin_request(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    size_t payload_size,
) noexcept nogil
cdef void end_pub(OutputBuffer output, size_t payload_size) noexcept nogil

# The same for a payload that exists already. Returns 0, or −1 when there is no memory. Without a reply its size is 0.
cdef int write_pub(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    const uint8_t* payload, size_t payload_size,
) noexcept nogil

# With headers: a block that begins with "NATS/1.0" and ends with an empty line.
cdef int write_hpub(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    const uint8_t* headers, size_t headers_size,
    const uint8_t* payload, size_t payload_size,
) noexcept nogil
