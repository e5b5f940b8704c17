# Header compression for HTTP/2 (RFC 7541).
#
# The decoder keeps its dynamic table in C. It gives each field to a sink and stops doing so, but goes on decoding, when the list passes its
# limit: the table must stay what the peer's encoder thinks it is, and a block of single bytes that all name the same large entry costs nothing.
# The encoder writes literals only; what we send is encoded once, when a module is loaded.

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from bascule.kernels.headers.names cimport classify_name
from bascule.kernels.wire.buffers cimport Bytes

cdef extern from "hpack_tables.h" nogil:
    ctypedef struct StaticEntry "hpack_static_entry":
        const char* name
        uint32_t name_size
        const char* value
        uint32_t value_size
    enum:
        STATIC_ENTRIES "HPACK_STATIC_ENTRIES"
        SYMBOLS "HPACK_SYMBOLS"
    const StaticEntry[61] static_table "hpack_static_table"
    const uint8_t[257] code_lengths "hpack_code_lengths"

cdef enum:
    ENTRY_OVERHEAD = 32         # §4.1
    RING_FIRST = 16
    INTEGER_LARGEST = 1 << 28   # far above every length we take, far below what could overflow
    END_OF_STRING = 256
    STEP_EMITS = 1
    STEP_FAILS = 2

# The Huffman code as an automaton over half bytes: a state is an inner node of the tree, 0 the root. No code is shorter than five bits, so
# that half a byte ends at most one.
cdef struct Step:
    uint8_t next
    uint8_t flags
    uint8_t symbol

cdef Step[256][16] steps
cdef bint[256] may_end              # the bits since the last symbol are at most seven and all ones (§5.2)
cdef uint8_t[61] static_known


class CompressionError(ValueError):
    """Bytes that are no header block; a connection cannot go on after it."""


cdef str result_text(int result):
    return (
        "no fault", "the header list is too large", "the block ends within a field", "an integer is too large",
        "an index is outside of the tables", "a string is not Huffman coded", "a table size update is misplaced or too large",
    )[result]


cdef void build_tree(int16_t[256][2] children) noexcept:
    # Canonical codes in order of length, then symbol. A child is an inner node, or −1 − symbol for a leaf.
    cdef uint32_t code = 0
    cdef int length, symbol, bit, node
    cdef int nodes = 1
    memset(children, 0, sizeof(int16_t) * 512)
    for length in range(1, 31):
        for symbol in range(SYMBOLS):
            if code_lengths[symbol] != length:
                continue
            node = 0
            for bit in range(length - 1, 0, -1):
                if children[node][(code >> bit) & 1] == 0:
                    children[node][(code >> bit) & 1] = <int16_t> nodes
                    nodes += 1
                node = children[node][(code >> bit) & 1]
            children[node][code & 1] = <int16_t> (-1 - symbol)
            code += 1
        code <<= 1


cdef void build_steps() noexcept:
    cdef int16_t[256][2] children
    cdef int state, half, bit, node, child
    build_tree(children)
    for state in range(256):
        for half in range(16):
            node = state
            steps[state][half].flags = 0
            for bit in range(3, -1, -1):
                child = children[node][(half >> bit) & 1]
                if child >= 0:
                    node = child
                    continue
                node = 0
                if child == -1 - END_OF_STRING:
                    steps[state][half].flags = STEP_FAILS
                    break
                steps[state][half].flags |= STEP_EMITS
                steps[state][half].symbol = <uint8_t> (-1 - child)
            steps[state][half].next = <uint8_t> node
    memset(may_end, 0, sizeof(may_end))
    node = 0
    for bit in range(8):
        may_end[node] = True
        node = children[node][1]


cdef void setup() noexcept:
    cdef int index
    build_steps()
    for index in range(STATIC_ENTRIES):
        static_known[index] = classify_name(<const uint8_t*> static_table[index].name, static_table[index].name_size)

setup()


cdef Py_ssize_t huffman_decode(const uint8_t* data, size_t size, uint8_t* out) noexcept nogil:
    # Bytes written to `out`, which has room for size * 8 / 5; −1 when the string is not right.
    cdef const uint8_t* end = data + size
    cdef uint8_t* start = out
    cdef uint8_t state = 0
    cdef uint8_t failed = 0
    cdef Step step
    while data < end:
        step = steps[state][data[0] >> 4]
        out[0] = step.symbol
        out += step.flags & STEP_EMITS
        failed |= step.flags
        step = steps[step.next][data[0] & 0x0F]
        out[0] = step.symbol
        out += step.flags & STEP_EMITS
        failed |= step.flags
        state = step.next
        data += 1
    if failed & STEP_FAILS or not may_end[state]:
        return -1
    return out - start


cdef inline const uint8_t* read_integer(
    const uint8_t* at, const uint8_t* end, int prefix_bits, uint64_t* value, int* fault
) noexcept nogil:
    # §5.1. NULL, with the reason in `fault`, when the bytes end first or the number is beyond all reason.
    cdef uint64_t most = (1 << prefix_bits) - 1
    cdef uint64_t result
    cdef uint8_t byte
    cdef int shift = 0
    if at >= end:
        fault[0] = HPACK_TRUNCATED
        return NULL
    result = at[0] & most
    at += 1
    if result < most:
        value[0] = result
        return at
    while at < end:
        byte = at[0]
        at += 1
        result += (<uint64_t> (byte & 0x7F)) << shift
        if result > INTEGER_LARGEST or shift > 28:
            fault[0] = HPACK_BAD_INTEGER
            return NULL
        if byte < 0x80:
            value[0] = result
            return at
        shift += 7
    fault[0] = HPACK_TRUNCATED
    return NULL


cdef const uint8_t* read_string(
    const uint8_t* at, const uint8_t* end, const uint8_t** data, size_t* size, uint8_t** scratch, int* fault
) noexcept nogil:
    # §5.2. A Huffman coded string is decoded to `scratch`, which is moved behind it.
    cdef uint64_t length = 0
    cdef Py_ssize_t decoded
    cdef bint coded
    if at >= end:
        fault[0] = HPACK_TRUNCATED
        return NULL
    coded = at[0] & 0x80 != 0
    at = read_integer(at, end, 7, &length, fault)
    if at == NULL:
        return NULL
    if length > <uint64_t> (end - at):
        fault[0] = HPACK_TRUNCATED
        return NULL
    if not coded:
        data[0] = at
        size[0] = length
        return at + length
    decoded = huffman_decode(at, length, scratch[0])
    if decoded < 0:
        fault[0] = HPACK_BAD_HUFFMAN
        return NULL
    data[0] = scratch[0]
    size[0] = decoded
    scratch[0] += decoded
    return at + length


cdef class HeaderSink:
    cdef int field(self, HeaderField* field) except -1:
        return 0


cdef class ListSink(HeaderSink):
    cdef list fields

    cdef int field(self, HeaderField* field) except -1:
        self.fields.append((
            PyBytes_FromStringAndSize(<const char*> field.name, field.name_size),
            PyBytes_FromStringAndSize(<const char*> field.value, field.value_size),
        ))
        return 0


cdef class HpackDecoder:
    def __cinit__(self, uint32_t table_bytes_max=4096, uint32_t list_bytes_max=65536):
        self.table_bytes_max = self.table_bytes_limit = table_bytes_max
        self.list_bytes_max = list_bytes_max

    def __dealloc__(self):
        self.evict(0)
        free(self.ring)

    cdef int decode_block(self, const uint8_t* data, size_t size, HeaderSink sink) except -1:
        # A HpackResult. All of a block that is not an error was read, whatever the sink thought of it.
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef HeaderField field
        cdef uint8_t* room = NULL           # where Huffman coded strings go: all of them fit, one after the other
        cdef uint8_t* scratch
        cdef uint64_t number = 0
        cdef uint64_t list_bytes = 0
        cdef bint fields_seen = False
        cdef int fault = HPACK_GOOD
        cdef uint8_t first
        try:
            while at < end:
                first = at[0]
                field.never_indexed = False
                if first & 0x80:                                    # §6.1 indexed
                    at = read_integer(at, end, 7, &number, &fault)
                    if at == NULL:
                        return fault
                    if not self.lookup(number, &field):
                        return HPACK_BAD_INDEX
                elif first & 0xE0 == 0x20:                          # §6.3 table size update: only before the first field
                    at = read_integer(at, end, 5, &number, &fault)
                    if at == NULL:
                        return fault
                    if fields_seen or number > self.table_bytes_limit:
                        return HPACK_BAD_SIZE_UPDATE
                    self.table_bytes_max = <uint32_t> number
                    self.generation += 1
                    self.evict(self.table_bytes_max)
                    continue
                else:                                               # §6.2 literal
                    if room == NULL:
                        room = <uint8_t*> malloc(size * 2 + 16)
                        if room == NULL:
                            raise MemoryError("no memory for a header block")
                    scratch = room
                    at = self.read_literal(at, end, &field, &scratch, &fault)
                    if at == NULL:
                        return fault
                fields_seen = True
                list_bytes += field.name_size + field.value_size + ENTRY_OVERHEAD
                if list_bytes <= self.list_bytes_max:
                    sink.field(&field)
                if first & 0xC0 == 0x40:
                    self.insert(&field)
        finally:
            free(room)
        return HPACK_TOO_LARGE if list_bytes > self.list_bytes_max else HPACK_GOOD

    cdef const uint8_t* read_literal(
        self, const uint8_t* at, const uint8_t* end, HeaderField* field, uint8_t** scratch, int* fault
    ) noexcept:
        cdef uint64_t number = 0
        field.never_indexed = at[0] & 0xF0 == 0x10
        at = read_integer(at, end, 6 if at[0] & 0x40 else 4, &number, fault)
        if at == NULL:
            return NULL
        if number:
            if not self.lookup(number, field):
                fault[0] = HPACK_BAD_INDEX
                return NULL
        else:
            at = read_string(at, end, &field.name, &field.name_size, scratch, fault)
            if at == NULL:
                return NULL
            field.known = classify_name(field.name, field.name_size)
        return read_string(at, end, &field.value, &field.value_size, scratch, fault)

    cdef bint lookup(self, uint64_t index, HeaderField* field) noexcept:
        cdef const StaticEntry* known
        cdef TableEntry* entry
        if index == 0 or index > STATIC_ENTRIES + self.count:
            return False
        if index <= STATIC_ENTRIES:
            known = &static_table[index - 1]
            field.name = <const uint8_t*> known.name
            field.name_size = known.name_size
            field.value = <const uint8_t*> known.value
            field.value_size = known.value_size
            field.known = static_known[index - 1]
            return True
        entry = self.ring[(self.newest + <uint32_t> index - STATIC_ENTRIES - 1) & (self.ring_capacity - 1)]
        field.name = <const uint8_t*> (entry + 1)
        field.name_size = entry.name_size
        field.value = field.name + entry.name_size
        field.value_size = entry.value_size
        field.known = entry.known
        return True

    cdef int insert(self, HeaderField* field) except -1:
        cdef uint64_t size = field.name_size + field.value_size + ENTRY_OVERHEAD
        cdef TableEntry* entry
        self.generation += 1
        if size > self.table_bytes_max:
            self.evict(0)                   # §4.4: not an error, it empties the table
            return 0
        # Copied before anything is evicted: the name may be that of an entry that goes.
        entry = <TableEntry*> malloc(sizeof(TableEntry) + field.name_size + field.value_size)
        if entry == NULL:
            raise MemoryError("no memory for a header table")
        entry.name_size = <uint32_t> field.name_size
        entry.value_size = <uint32_t> field.value_size
        entry.known = field.known
        memcpy(entry + 1, field.name, field.name_size)
        memcpy(<uint8_t*> (entry + 1) + field.name_size, field.value, field.value_size)
        self.evict(self.table_bytes_max - <uint32_t> size)
        if self.count == self.ring_capacity:
            try:
                self.grow_ring()
            except MemoryError:
                free(entry)
                raise
        self.newest = (self.newest - 1) & (self.ring_capacity - 1)
        self.ring[self.newest] = entry
        self.count += 1
        self.table_bytes += <uint32_t> size
        return 0

    cdef int grow_ring(self) except -1:
        cdef uint32_t capacity = self.ring_capacity * 2 if self.ring_capacity else RING_FIRST
        cdef TableEntry** ring = <TableEntry**> malloc(capacity * sizeof(TableEntry*))
        cdef uint32_t index
        if ring == NULL:
            raise MemoryError("no memory for a header table")
        for index in range(self.count):
            ring[index] = self.ring[(self.newest + index) & (self.ring_capacity - 1)]
        free(self.ring)
        self.ring = ring
        self.ring_capacity = capacity
        self.newest = 0
        return 0

    cdef void evict(self, uint32_t room) noexcept:
        # The oldest go until the table takes at most `room`.
        cdef TableEntry* entry
        while self.table_bytes > room:
            self.count -= 1
            entry = self.ring[(self.newest + self.count) & (self.ring_capacity - 1)]
            self.table_bytes -= entry.name_size + entry.value_size + ENTRY_OVERHEAD
            free(entry)

    def decode(self, block):
        cdef Bytes given = Bytes(block)
        cdef ListSink sink = ListSink()
        cdef int result
        sink.fields = []
        result = self.decode_block(given.data, given.size, sink)
        if result != HPACK_GOOD and result != HPACK_TOO_LARGE:
            raise CompressionError(result_text(result))
        return sink.fields, result == HPACK_GOOD

    def entries(self):
        cdef HeaderField field
        cdef uint32_t index
        found = []
        for index in range(self.count):
            self.lookup(STATIC_ENTRIES + 1 + index, &field)
            found.append((field.name[: field.name_size], field.value[: field.value_size]))
        return found


cdef bytes encode_integer(uint64_t value, int prefix_bits, int pattern):
    cdef uint64_t most = (1 << prefix_bits) - 1
    cdef bytearray out
    if value < most:
        return bytes((pattern | <int> value,))
    out = bytearray((pattern | <int> most,))
    value -= most
    while value >= 0x80:
        out.append(<int> (value & 0x7F) | 0x80)
        value >>= 7
    out.append(<int> value)
    return bytes(out)


cdef dict static_indexes():
    cdef int index
    found = {}
    for index in range(STATIC_ENTRIES - 1, -1, -1):
        name = static_table[index].name[: static_table[index].name_size]
        found[name] = index + 1
        found[name, static_table[index].value[: static_table[index].value_size]] = index + 1
    return found

cdef dict STATIC_INDEXES = static_indexes()


cdef bytes encode_literals(object fields):
    cdef bytearray out = bytearray()
    for name, value in fields:
        if (name, value) in STATIC_INDEXES:
            out += encode_integer(STATIC_INDEXES[name, value], 7, 0x80)
            continue
        if name in STATIC_INDEXES:
            out += encode_integer(STATIC_INDEXES[name], 4, 0)
        else:
            out += b"\0" + encode_integer(len(name), 7, 0) + name
        out += encode_integer(len(value), 7, 0) + value
    return bytes(out)


def encode(fields):
    return encode_literals(fields)
