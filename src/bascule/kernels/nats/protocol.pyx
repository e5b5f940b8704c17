# The NATS client protocol over whole buffers: messages go to the sinks of their subscriptions, control lines to the shell.
#
# lines.pxd has the syntax of a line. CR and LF follow a payload. Anything else is a fault: the start of the next line is unknown then,
# so the reader stops, and the shell opens a new connection.

from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove

from bascule.kernels.nats.lines cimport HMSG, MSG, OTHER, PING, Line, read_arguments, split_line
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    CAPACITY_FIRST = 1 << 16
    SLOTS_FIRST = 64
    READS_UNTIL_SHRUNK = 256        # reads without a large message after which its memory is released
    NO_HEADERS = <size_t> -1

cdef enum Outcome:
    NEEDS_MORE = 0
    CONTROL
    BROKEN

cdef enum Fault:
    GOOD = 0
    LINE_TOO_LONG
    UNKNOWN_OPERATION
    BAD_ARGUMENTS
    MESSAGE_TOO_LARGE
    NO_LINE_BREAK
    NO_MEMORY

# Indexed by Fault.
REASONS = (
    "",
    "a line is too long",
    "a line begins with no operation of NATS",
    "the arguments of a message are malformed",
    "a message is larger than any may be",
    "no line break follows a payload",
    "there is no memory",
)

SUBJECT_BYTES_MAX = SUBJECT_SIZE_MAX

Event = tuple                       # of a name and its arguments

# Indexed by Operation.
EVENT_NAMES = ("", "MSG", "HMSG", "PING", "PONG", "+OK", "-ERR", "INFO")

cdef const uint8_t* PONG_LINE = b"PONG\r\n"


# ── sinks ────────────────────────────────────────────────────────────────────────────────────────


cdef class MessageSink:
    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        return 0

    cdef int deliver(self) except -1:
        return 0


cdef class CallbackSink(MessageSink):
    # Messages wait in `queue` until the read is scanned: four sizes, then the bytes.
    cdef object callback
    cdef OutputBuffer queue

    def __init__(self, callback):
        self.callback = callback
        self.queue = OutputBuffer()
        self.delivers = True

    cdef int on_message(self, NatsMessage* message) noexcept nogil:
        cdef size_t sizes[4]
        cdef size_t total
        cdef uint8_t* at
        sizes[0] = message.subject_size
        sizes[1] = message.reply_size
        sizes[2] = NO_HEADERS if message.headers == NULL else message.headers_size
        sizes[3] = message.payload_size
        total = sizeof(sizes) + message.subject_size + message.reply_size + message.headers_size + message.payload_size
        at = self.queue.reserve(total)
        if at == NULL:
            return -1
        memcpy(at, sizes, sizeof(sizes))
        at += sizeof(sizes)
        memcpy(at, message.subject, message.subject_size)
        at += message.subject_size
        if message.reply_size:
            memcpy(at, message.reply, message.reply_size)
            at += message.reply_size
        if message.headers_size:
            memcpy(at, message.headers, message.headers_size)
            at += message.headers_size
        if message.payload_size:
            memcpy(at, message.payload, message.payload_size)
        self.queue.commit(total)
        return 0

    cdef list take(self):
        cdef size_t sizes[4]
        cdef const uint8_t* at = self.queue.data + self.queue.start
        cdef const uint8_t* end = self.queue.data + self.queue.end
        cdef list waiting = []
        cdef object headers
        while at < end:
            memcpy(sizes, at, sizeof(sizes))
            at += sizeof(sizes)
            subject = PyBytes_FromStringAndSize(<char*> at, sizes[0])
            at += sizes[0]
            reply = PyBytes_FromStringAndSize(<char*> at, sizes[1])
            at += sizes[1]
            headers = None
            if sizes[2] != NO_HEADERS:
                headers = PyBytes_FromStringAndSize(<char*> at, sizes[2])
                at += sizes[2]
            waiting.append((subject, reply, headers, PyBytes_FromStringAndSize(<char*> at, sizes[3])))
            at += sizes[3]
        self.queue.clear()
        return waiting

    cdef int deliver(self) except -1:
        cdef NatsReader reader = self.reader
        for message in self.take():
            try:
                self.callback(*message)
            except Exception as error:
                # A callback that fails for one message must not stop the others.
                if reader is None or reader.on_fault is None:
                    raise
                reader.on_fault(error)
        return 0


# ── the reader ───────────────────────────────────────────────────────────────────────────────────


cdef class NatsReader:
    def __cinit__(self):
        self.output = OutputBuffer()
        self.sinks = {}
        self.leaving = []
        self.capacity = CAPACITY_FIRST
        self.data = <uint8_t*> malloc(self.capacity)
        self.slots = <Slot*> calloc(SLOTS_FIRST, sizeof(Slot))
        self.slot_mask = SLOTS_FIRST - 1
        if self.data == NULL or self.slots == NULL:
            raise MemoryError("no memory for a reader")

    def __init__(self, *, size_t message_bytes_max, size_t line_bytes_max, size_t buffer_bytes_max=1 << 20):
        self.message_bytes_max = message_bytes_max
        self.line_bytes_max = line_bytes_max
        self.buffer_bytes_max = max(buffer_bytes_max, <size_t> CAPACITY_FIRST)

    def __dealloc__(self):
        free(self.data)
        free(self.slots)
        free(self.touched_sinks)

    @property
    def buffer_bytes(self):
        return self.capacity

    @property
    def waiting_bytes(self):
        return self.filled

    # ── subscriptions ──

    def attach(self, uint64_t sid, MessageSink sink not None):
        cdef size_t index
        if sid in self.sinks:
            raise ValueError(f"subscription {sid} has a sink already")
        if sink.reader is not None and sink.reader is not self:
            raise ValueError("the sink belongs to another reader")
        if (<size_t> len(self.sinks) + 1) * 2 > self.slot_mask:
            self.grow_table()
        self.expect_touches()
        index = sid & self.slot_mask
        while self.slots[index].sink != NULL:
            index = (index + 1) & self.slot_mask
        self.slots[index].sid = sid
        self.slots[index].sink = <void*> sink
        self.sinks[sid] = sink
        sink.reader = self
        sink.subscriptions += 1

    def detach(self, uint64_t sid):
        cdef MessageSink sink = self.sinks.pop(sid, None)
        if sink is None:
            return
        self.free_slot(self.find(sid))
        if sink.is_touched:
            self.leaving.append(sink)
        sink.subscriptions -= 1
        if sink.subscriptions == 0:
            sink.reader = None

    def touched(self):
        cdef list found = []
        cdef MessageSink sink
        cdef size_t index
        for index in range(self.touched_count):
            sink = <MessageSink> self.touched_sinks[index]
            sink.is_touched = False
            found.append(sink)
        self.touched_count = 0
        self.leaving.clear()
        return found

    cdef Slot* find(self, uint64_t sid) noexcept nogil:
        cdef size_t index = sid & self.slot_mask
        while self.slots[index].sink != NULL:
            if self.slots[index].sid == sid:
                return &self.slots[index]
            index = (index + 1) & self.slot_mask
        return NULL

    cdef void free_slot(self, Slot* slot) noexcept nogil:
        # Entries that were placed after the freed slot because it was taken move forward, else lookups would miss them.
        cdef size_t hole = slot - self.slots
        cdef size_t index = hole
        cdef size_t home
        while True:
            index = (index + 1) & self.slot_mask
            if self.slots[index].sink == NULL:
                break
            home = self.slots[index].sid & self.slot_mask
            if ((index - home) & self.slot_mask) >= ((index - hole) & self.slot_mask):
                self.slots[hole] = self.slots[index]
                hole = index
        self.slots[hole].sink = NULL

    cdef int grow_table(self) except -1:
        cdef size_t size = (self.slot_mask + 1) * 2
        cdef Slot* old = self.slots
        cdef Slot* grown = <Slot*> calloc(size, sizeof(Slot))
        cdef size_t index, place
        if grown == NULL:
            raise MemoryError("no memory for a subscription")
        for index in range(self.slot_mask + 1):
            if old[index].sink != NULL:
                place = old[index].sid & (size - 1)
                while grown[place].sink != NULL:
                    place = (place + 1) & (size - 1)
                grown[place] = old[index]
        self.slots = grown
        self.slot_mask = size - 1
        free(old)
        return 0

    cdef int expect_touches(self) except -1:
        # Room for every sink and one more, so that the scan never allocates.
        cdef size_t wanted = self.touched_count + len(self.sinks) + 1
        cdef SinkPointer* grown
        if wanted > self.touched_capacity:
            grown = <SinkPointer*> realloc(self.touched_sinks, 2 * wanted * sizeof(SinkPointer))
            if grown == NULL:
                raise MemoryError("no memory for a subscription")
            self.touched_sinks = grown
            self.touched_capacity = 2 * wanted
        return 0

    # ── bytes in ──

    def get_buffer(self, Py_ssize_t hint=-1):
        # The loop reads into this view at once and drops it before the buffer can move.
        return PyMemoryView_FromMemory(<char*> (self.data + self.filled), self.capacity - self.filled, PyBUF_WRITE)

    def received(self, size_t count):
        cdef tuple events
        if count > self.capacity - self.filled:
            raise ValueError(f"{count} bytes were not received: there was room for {self.capacity - self.filled}")
        self.filled += count
        events = self.scan_all()
        if self.broken:
            self.filled = self.scanned = 0
        else:
            self.make_room()
        if self.must_deliver:
            self.deliver_all()
        return events

    def examine(self, data):
        cdef Bytes given = Bytes(data)
        cdef uint8_t* own = self.data
        cdef size_t scanned
        if self.filled:
            raise ValueError("the reader is in the middle of a line")
        self.data = <uint8_t*> given.data
        self.filled = given.size
        try:
            events = self.scan_all()
        finally:
            scanned = self.scanned
            self.data = own
            self.filled = self.scanned = 0
        if self.must_deliver:
            self.deliver_all()
        return events, scanned

    def reset(self):
        self.filled = self.scanned = self.needed = 0
        self.broken = GOOD
        self.connected = False
        self.output.clear()
        if self.capacity > self.buffer_bytes_max:
            self.resize(self.buffer_bytes_max)

    cdef tuple scan_all(self):
        cdef list events = None
        cdef Line line
        cdef int outcome
        while not self.broken:
            with nogil:
                outcome = self.scan(&line)
            if outcome == NEEDS_MORE:
                break
            if events is None:
                events = []
            if outcome == BROKEN:
                events.append(("BROKEN", REASONS[self.broken].encode()))
            else:
                detail = PyBytes_FromStringAndSize(<char*> line.arguments, line.arguments_size)
                events.append((EVENT_NAMES[line.operation], detail))
        return () if events is None else tuple(events)

    cdef int scan(self, Line* line) noexcept nogil:
        # Pass messages to sinks and answer PINGs until a control line, the end of the bytes, or a fault.
        cdef const uint8_t* at
        cdef const uint8_t* end = self.data + self.filled
        cdef const uint8_t* newline
        cdef size_t most
        cdef int fault = GOOD
        self.needed = 0
        while True:
            at = self.data + self.scanned
            most = end - at
            if most > self.line_bytes_max:
                most = self.line_bytes_max
            newline = <const uint8_t*> memchr(at, b"\n", most) if most else NULL
            if newline == NULL:
                if most < self.line_bytes_max:
                    return NEEDS_MORE
                self.broken = LINE_TOO_LONG
                return BROKEN
            split_line(at, newline - (newline > at and (newline - 1)[0] == b"\r"), line)
            if line.operation == MSG or line.operation == HMSG:
                fault = self.take_message(line, newline + 1)
                if self.needed:
                    return NEEDS_MORE
            else:
                self.scanned = newline + 1 - self.data
                if line.operation == PING:
                    fault = NO_MEMORY if self.output.put(PONG_LINE, 6) else GOOD
                elif line.operation == OTHER:
                    fault = UNKNOWN_OPERATION
                else:
                    return CONTROL
            if fault:
                self.broken = fault
                return BROKEN

    cdef int take_message(self, Line* line, const uint8_t* payload) noexcept nogil:
        # Sets only `needed` when the message is incomplete.
        cdef const uint8_t* end = self.data + self.filled
        cdef NatsMessage message
        cdef Slot* slot
        if not read_arguments(line):
            return BAD_ARGUMENTS
        if line.total_size > self.message_bytes_max:
            return MESSAGE_TOO_LARGE
        if <size_t> (end - payload) < line.total_size + 2:
            self.needed = (payload - self.data) - self.scanned + line.total_size + 2
            return GOOD
        if payload[line.total_size] != b"\r" or payload[line.total_size + 1] != b"\n":
            return NO_LINE_BREAK
        self.scanned = (payload - self.data) + line.total_size + 2
        slot = self.find(line.sid)
        if slot == NULL:
            self.unknown += 1
            return GOOD
        message.subject = line.subject
        message.subject_size = line.subject_size
        message.reply = line.reply
        message.reply_size = line.reply_size
        message.headers = payload if line.operation == HMSG else NULL
        message.headers_size = line.headers_size
        message.payload = payload + line.headers_size
        message.payload_size = line.total_size - line.headers_size
        return self.hand_over(slot.sink, &message, line.total_size)

    cdef int hand_over(self, void* sink, NatsMessage* message, size_t size) noexcept nogil:
        cdef int refused = (<MessageSink> sink).on_message(message)
        if not (<MessageSink> sink).is_touched:
            (<MessageSink> sink).is_touched = True
            self.touched_sinks[self.touched_count] = sink
            self.touched_count += 1
        if (<MessageSink> sink).delivers:
            self.must_deliver = True
        if refused:
            self.dropped += 1
        else:
            self.messages += 1
            self.message_bytes += size
        return GOOD

    cdef int deliver_all(self) except -1:
        cdef MessageSink sink
        cdef size_t index
        cdef list waiting = []
        self.must_deliver = False
        for index in range(self.touched_count):
            if (<MessageSink> self.touched_sinks[index]).delivers:
                waiting.append(<MessageSink> self.touched_sinks[index])
        for sink in waiting:
            sink.deliver()
        return 0

    # ── the buffer ──

    cdef int make_room(self) except -1:
        # Move the remaining bytes to the front. The buffer grows for a message that would not fit, and while reads fill it.
        cdef size_t left = self.filled - self.scanned
        cdef bint was_full = self.filled == self.capacity
        if self.scanned and left:
            memmove(self.data, self.data + self.scanned, left)
        self.scanned = 0
        self.filled = left
        self.reads_since_large += 1
        if self.needed > self.buffer_bytes_max:
            self.reads_since_large = 0
        if self.needed > self.capacity:
            self.resize(max(self.needed, self.capacity))
        elif was_full and (self.capacity < self.buffer_bytes_max or left == self.capacity):
            self.resize(self.capacity * 2)
        elif self.capacity > self.buffer_bytes_max and left < self.buffer_bytes_max:
            if self.reads_since_large > READS_UNTIL_SHRUNK:
                self.resize(self.buffer_bytes_max)
        return 0

    cdef int resize(self, size_t capacity) except -1:
        cdef uint8_t* moved = <uint8_t*> realloc(self.data, capacity)
        if moved == NULL:
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        self.data = moved
        self.capacity = capacity
        return 0


# ── publishing ───────────────────────────────────────────────────────────────────────────────


cdef bint is_subject(const uint8_t* subject, size_t size) noexcept nogil:
    # Eight bytes at a time: the highest bit of a byte in `faults` is set if the byte is a control character, a space or DEL.
    cdef uint64_t faults = 0
    cdef uint64_t word
    cdef size_t index = 0
    if size == 0 or size > SUBJECT_SIZE_MAX:
        return False
    while size - index >= 8:
        memcpy(&word, subject + index, 8)
        faults |= (word - 0x2121212121212121ULL) & ~word
        word ^= 0x7F7F7F7F7F7F7F7FULL
        faults |= (word - 0x0101010101010101ULL) & ~word
        index += 8
    if faults & 0x8080808080808080ULL:
        return False
    while index < size:
        if subject[index] <= 0x20 or subject[index] == 0x7F:
            return False
        index += 1
    return True


cdef inline size_t write_number(uint8_t* at, size_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef size_t count = 0
    cdef size_t index
    while True:
        digits[count] = <uint8_t> b"0" + <uint8_t> (value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    for index in range(count):
        at[index] = digits[count - 1 - index]
    return count


cdef inline uint8_t* write_word(uint8_t* at, const uint8_t* word, size_t size) noexcept nogil:
    memcpy(at, word, size)
    at[size] = b" "
    return at + size + 1


cdef uint8_t* begin_request(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    size_t payload_size,
) noexcept nogil:
    # PUB, two or three blanks, twenty digits and two line breaks at most
    cdef uint8_t* start = output.reserve(subject_size + reply_size + payload_size + 32)
    cdef uint8_t* at = start
    if start == NULL:
        return NULL
    at = write_word(at, b"PUB", 3)
    at = write_word(at, subject, subject_size)
    if reply_size:
        at = write_word(at, reply, reply_size)
    at += write_number(at, payload_size)
    at[0] = b"\r"
    at[1] = b"\n"
    output.commit(at + 2 - start)
    return at + 2


cdef uint8_t* begin_pub(
    OutputBuffer output, const uint8_t* subject, size_t subject_size, size_t payload_size
) noexcept nogil:
    return begin_request(output, subject, subject_size, NULL, 0, payload_size)


cdef void end_pub(OutputBuffer output, size_t payload_size) noexcept nogil:
    cdef uint8_t* at = output.data + output.end + payload_size
    at[0] = b"\r"
    at[1] = b"\n"
    output.commit(payload_size + 2)


cdef int write_pub(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    const uint8_t* payload, size_t payload_size,
) noexcept nogil:
    cdef uint8_t* at = begin_request(output, subject, subject_size, reply, reply_size, payload_size)
    if at == NULL:
        return -1
    if payload_size:
        memcpy(at, payload, payload_size)
    end_pub(output, payload_size)
    return 0


cdef int write_hpub(
    OutputBuffer output,
    const uint8_t* subject, size_t subject_size,
    const uint8_t* reply, size_t reply_size,
    const uint8_t* headers, size_t headers_size,
    const uint8_t* payload, size_t payload_size,
) noexcept nogil:
    cdef uint8_t* start = output.reserve(subject_size + reply_size + headers_size + payload_size + 64)
    cdef uint8_t* at = start
    if start == NULL:
        return -1
    at = write_word(at, b"HPUB", 4)
    at = write_word(at, subject, subject_size)
    if reply_size:
        at = write_word(at, reply, reply_size)
    at += write_number(at, headers_size)
    at[0] = b" "
    at += 1
    at += write_number(at, headers_size + payload_size)
    at[0] = b"\r"
    at[1] = b"\n"
    memcpy(at + 2, headers, headers_size)
    output.commit(at + 2 + headers_size - start)
    if payload_size:
        memcpy(at + 2 + headers_size, payload, payload_size)
    end_pub(output, payload_size)
    return 0


def publish(OutputBuffer output not None, subject, payload, reply=b"", headers=None):
    cdef Bytes to = Bytes(subject)
    cdef Bytes back = Bytes(reply)
    cdef Bytes body = Bytes(payload)
    cdef Bytes head
    cdef int failed
    if not is_subject(to.data, to.size):
        raise ValueError(f"{bytes(subject)!r} is no subject to publish to")
    if back.size and not is_subject(back.data, back.size):
        raise ValueError(f"{bytes(reply)!r} is no subject to answer to")
    if headers is None:
        failed = write_pub(output, to.data, to.size, back.data, back.size, body.data, body.size)
    else:
        head = Bytes(headers)
        failed = write_hpub(
            output, to.data, to.size, back.data, back.size, head.data, head.size, body.data, body.size
        )
    if failed:
        raise MemoryError("no memory for an output buffer, or it is being looked at")


def publish_many(OutputBuffer output not None, bytes subject, bytes payload, size_t count):
    cdef const uint8_t* to = subject
    cdef const uint8_t* body = payload
    cdef size_t to_size = len(subject)
    cdef size_t body_size = len(payload)
    cdef size_t index
    cdef int failed = 0
    if not is_subject(to, to_size):
        raise ValueError(f"{subject!r} is no subject to publish to")
    with nogil:
        for index in range(count):
            failed = write_pub(output, to, to_size, NULL, 0, body, body_size)
            if failed:
                break
    if failed:
        raise MemoryError("no memory for an output buffer, or it is being looked at")
