# The messages that a partition's sink has collected: the memory of a batch, and the acks that its publishers wait for.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

cdef enum:
    BUFFER_FIRST = 4096

# A publisher waits for the ack of this message. Its texts follow one another in the batch's `texts`.
cdef struct AckEntry:
    uint32_t record                 # index in its batch; of no meaning when there is an error
    int32_t ack_policy
    uint32_t error                  # ACK_OK for a message that is in the batch
    uint32_t inbox_size
    uint32_t correlation_id_size
    uint32_t msg_subject_size
    size_t texts_at                 # inbox · correlation id · subject
    int64_t original                # of a duplicate: the offset of the stored message, UNKNOWN_OFFSET if it is not known; else NO_DUPLICATE

cdef enum:
    UNKNOWN_OFFSET = -1
    NO_DUPLICATE = -2

# The memory of one batch: the builder's buffer and the ack entries. It wanders between a sink, its prepared batches and the pool,
# so that a message costs no allocation and a scan needs no Python object but the sink.
cdef struct Collected:
    uint8_t* buffer                 # what a BatchBuilder has; see there
    size_t capacity
    size_t size
    uint32_t records
    uint32_t subject_at
    uint32_t subject_size
    uint8_t attributes
    bint is_sequenced               # holds messages of idempotent producers, or duplicates of such: right at base_offset alone
    int64_t base_offset             # what the first record gets if nothing comes between
    int64_t originals_to            # duplicates are acked when this offset is as safe as they ask; −1 without any
    AckEntry* entries
    uint32_t entry_count
    uint32_t entry_capacity
    uint8_t* texts
    size_t texts_size
    size_t texts_capacity
    uint32_t leader_acks
    uint32_t all_acks
    uint32_t errors


cdef inline size_t memory_of(Collected* collected) noexcept nogil:
    return collected.capacity + collected.entry_capacity * sizeof(AckEntry) + collected.texts_capacity


cdef inline void free_memory(Collected* collected) noexcept nogil:
    free(collected.buffer)
    free(collected.entries)
    free(collected.texts)
    memset(collected, 0, sizeof(Collected))


cdef inline bint complete(Collected* spare, Collected* given) noexcept nogil:
    # Records and acks of a batch return at different times. Their halves are joined again, so that the next user of the
    # memory finds both.
    if given.buffer == NULL and spare.entries == NULL and spare.texts == NULL:
        spare.entries = given.entries
        spare.entry_capacity = given.entry_capacity
        spare.texts = given.texts
        spare.texts_capacity = given.texts_capacity
    elif spare.buffer == NULL and given.entries == NULL and given.texts == NULL:
        spare.buffer = given.buffer
        spare.capacity = given.capacity
    else:
        return False
    memset(given, 0, sizeof(Collected))
    return True


cdef inline bint make_room(Collected* current, size_t more) noexcept nogil:
    # For one more entry and so many bytes of text.
    cdef uint32_t count = current.entry_capacity
    cdef size_t capacity = current.texts_capacity if current.texts_capacity else BUFFER_FIRST
    cdef void* grown
    if current.entry_count == count:
        count = count * 2 if count else 32
        grown = realloc(current.entries, count * sizeof(AckEntry))
        if grown == NULL:
            return False
        current.entries = <AckEntry*> grown
        current.entry_capacity = count
    if current.texts_size + more > current.texts_capacity:
        while capacity < current.texts_size + more:
            capacity *= 2
        grown = realloc(current.texts, capacity)
        if grown == NULL:
            return False
        current.texts = <uint8_t*> grown
        current.texts_capacity = capacity
    return True
