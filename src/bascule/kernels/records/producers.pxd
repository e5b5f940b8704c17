# Idempotent producers for other kernels. docs/internals/idempotence.md has the rules.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    PRODUCER_ID_BYTES_MAX = 64
    NUMBER_DIGITS_MAX = 18          # always fits 63 bits
    RUNS_MAX = 64                   # runs of consecutive offsets per producer

cdef enum Verdict:
    VERDICT_NEW = 0
    VERDICT_DUPLICATE
    VERDICT_FENCED
    VERDICT_OUT_OF_SEQUENCE

# The three headers of one message. The id points into the headers.
cdef struct ProducerView:
    const uint8_t* id
    uint32_t id_size
    uint32_t seen                   # bits: the headers found, and whether one is malformed
    int64_t epoch
    int64_t sequence

# Checks one header, which mostly is none of the three. `view` must be zero before the first.
cdef void look_at_header(
    const uint8_t* name, uint32_t name_size, const uint8_t* value, uint32_t value_size, ProducerView* view
) noexcept nogil
# The result after the last header: 0 none of the three, 1 all of them, −1 malformed.
cdef int producer_of(ProducerView* view) noexcept nogil

# Consecutive sequences at consecutive offsets.
cdef struct Run:
    int64_t sequence
    int64_t offset
    int64_t count

cdef struct Producer:
    uint64_t hash
    Producer* next_in_bucket
    Producer* older                 # neighbours in the order of the last stored message
    Producer* newer
    int64_t epoch
    int64_t last_sequence
    Run* runs                       # oldest first
    uint32_t run_count              # 0: no message is stored yet
    uint32_t run_capacity
    uint32_t id_size
    uint8_t id[PRODUCER_ID_BYTES_MAX]


cdef class ProducerTable:
    cdef readonly uint32_t producers_max
    cdef readonly uint32_t count
    cdef readonly uint64_t forgotten            # producers removed at the limit
    cdef Producer** buckets
    cdef uint32_t bucket_count                  # a power of two
    cdef uint64_t seed
    cdef Producer* oldest
    cdef Producer* newest
    cdef Producer* find(self, const uint8_t* id, uint32_t size) noexcept nogil
    # The verdict about a message. For a duplicate also the offset of the original, −1 if unknown, and an upper bound of it.
    cdef int judge_view(self, ProducerView* view, int64_t* offset, int64_t* at_most) noexcept nogil
    # Allocates memory for note_view(), which cannot fail after it; False if there is none.
    cdef bint prepare(self, ProducerView* view) noexcept nogil
    cdef void note_view(self, ProducerView* view, int64_t offset) noexcept nogil
    cdef Producer* add(self, const uint8_t* id, uint32_t size) noexcept nogil
    cdef bint grow(self) noexcept nogil
    cdef void forget_oldest(self) noexcept nogil
    cdef void unlink(self, Producer* producer) noexcept nogil
    cdef void make_newest(self, Producer* producer) noexcept nogil
    cdef int note_records(self, const uint8_t* at, const uint8_t* end, int64_t first_offset, int64_t end_offset) noexcept nogil
