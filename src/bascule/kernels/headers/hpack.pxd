# Header compression (RFC 7541) for other kernels: fields go to a sink as they are read, without a Python object for each.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum HpackResult:
    HPACK_GOOD = 0
    HPACK_TOO_LARGE             # the list passed its limit; the table is what it should be and the rest was not shown to the sink
    HPACK_TRUNCATED
    HPACK_BAD_INTEGER
    HPACK_BAD_INDEX
    HPACK_BAD_HUFFMAN
    HPACK_BAD_SIZE_UPDATE

cdef struct HeaderField:
    const uint8_t* name
    size_t name_size
    const uint8_t* value
    size_t value_size
    uint8_t known               # HeaderName of header_names.pxd
    bint never_indexed


cdef struct TableEntry:
    uint32_t name_size
    uint32_t value_size
    uint8_t known
    # name and value follow


cdef class HeaderSink:
    cdef int field(self, HeaderField* field) except -1      # the bytes are gone afterwards


cdef class HpackDecoder:
    cdef readonly uint64_t generation       # changes whenever the dynamic table does
    cdef readonly uint32_t table_bytes      # as RFC 7541 §4.1 counts them
    cdef uint32_t table_bytes_max           # what the peer's encoder has chosen
    cdef uint32_t table_bytes_limit         # what it may choose
    cdef uint32_t list_bytes_max
    cdef TableEntry** ring                  # newest at `newest`, older ones behind it; a power of two of places
    cdef uint32_t ring_capacity
    cdef uint32_t newest
    cdef uint32_t count
    cdef int decode_block(self, const uint8_t* data, size_t size, HeaderSink sink) except -1
    cdef const uint8_t* read_literal(
        self, const uint8_t* at, const uint8_t* end, HeaderField* field, uint8_t** scratch, int* fault
    ) noexcept
    cdef bint lookup(self, uint64_t index, HeaderField* field) noexcept
    cdef int insert(self, HeaderField* field) except -1
    cdef int grow_ring(self) except -1
    cdef void evict(self, uint32_t room) noexcept

cdef bytes encode_literals(object fields)   # a header block of (name, value) pairs that needs and leaves no dynamic table
