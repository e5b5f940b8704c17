# Copies of messages that two brokers receive while a partition changes its leader: one notes what it received, the other recognises it.
#
# A message is known by SipHash-2-4 (64 bits, little-endian words) of: u32 sizes of subject, reply, headers and payload · these. The key is
# random for each hand-over: publishers cannot choose messages with equal hashes. 0 becomes 1. Messages with equal bytes are
# interchangeable, so the table counts copies of a hash.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from bascule.kernels.nats.protocol cimport NatsMessage
from bascule.kernels.wire.numbers cimport load_u64, store_u32

cdef enum:
    HASHES_FIRST = 1024
    COPIES_KEY_SIZE = 16

cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3
    uint64_t word                   # bytes that do not fill a word yet
    uint64_t size

# Hashes in the order in which the messages came.
cdef struct NotedHashes:
    uint64_t key[2]
    uint64_t* hashes                # the owner's to free
    size_t count
    size_t capacity
    bint is_incomplete              # there was no memory for some

cdef struct Copy:
    uint64_t hash
    uint32_t early                  # copies that may exist, and have arrived if they do
    uint32_t late                   # copies that exist, and may still arrive

cdef struct Copies:
    uint64_t key[2]
    Copy* table                     # open addressing; an entry with the hash 0 is free. The owner's to free
    size_t mask
    uint64_t missing                # copies that have not arrived


# ── the hash ─────────────────────────────────────────────────────────────────────────────────────


cdef inline uint64_t rotate(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void sip_round(SipState* state) noexcept nogil:
    state.v0 += state.v1
    state.v1 = rotate(state.v1, 13) ^ state.v0
    state.v0 = rotate(state.v0, 32)
    state.v2 += state.v3
    state.v3 = rotate(state.v3, 16) ^ state.v2
    state.v0 += state.v3
    state.v3 = rotate(state.v3, 21) ^ state.v0
    state.v2 += state.v1
    state.v1 = rotate(state.v1, 17) ^ state.v2
    state.v2 = rotate(state.v2, 32)


cdef inline void sip_word(SipState* state, uint64_t word) noexcept nogil:
    state.v3 ^= word
    sip_round(state)
    sip_round(state)
    state.v0 ^= word


cdef inline void sip_add(SipState* state, const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t at = 0
    while at < size and state.size & 7:
        state.word |= <uint64_t> data[at] << (8 * (state.size & 7))
        state.size += 1
        at += 1
        if state.size & 7 == 0:
            sip_word(state, state.word)
            state.word = 0
    while at + 8 <= size:
        sip_word(state, load_u64(data + at))
        state.size += 8
        at += 8
    while at < size:
        state.word |= <uint64_t> data[at] << (8 * (state.size & 7))
        state.size += 1
        at += 1


cdef inline uint64_t hash_message(const uint64_t* key, NatsMessage* message) noexcept nogil:
    cdef SipState state
    cdef uint8_t sizes[16]
    cdef int index
    state.v0 = key[0] ^ <uint64_t> 0x736f6d6570736575
    state.v1 = key[1] ^ <uint64_t> 0x646f72616e646f6d
    state.v2 = key[0] ^ <uint64_t> 0x6c7967656e657261
    state.v3 = key[1] ^ <uint64_t> 0x7465646279746573
    state.word = state.size = 0
    store_u32(sizes, <uint32_t> message.subject_size)
    store_u32(sizes + 4, <uint32_t> message.reply_size)
    store_u32(sizes + 8, <uint32_t> message.headers_size)
    store_u32(sizes + 12, <uint32_t> message.payload_size)
    sip_add(&state, sizes, 16)
    sip_add(&state, message.subject, message.subject_size)
    sip_add(&state, message.reply, message.reply_size)
    sip_add(&state, message.headers, message.headers_size)
    sip_add(&state, message.payload, message.payload_size)
    sip_word(&state, state.word | (state.size << 56))
    state.v2 ^= 0xff
    for index in range(4):
        sip_round(&state)
    return (state.v0 ^ state.v1 ^ state.v2 ^ state.v3) or 1


# ── noting ───────────────────────────────────────────────────────────────────────────────────────


cdef inline void note_hash(NotedHashes* noted, NatsMessage* message) noexcept nogil:
    cdef size_t capacity = noted.capacity * 2 if noted.capacity else HASHES_FIRST
    cdef uint64_t* grown
    if noted.count == noted.capacity:
        grown = <uint64_t*> realloc(noted.hashes, capacity * sizeof(uint64_t))
        if grown == NULL:
            noted.is_incomplete = True
            return
        noted.hashes = grown
        noted.capacity = capacity
    noted.hashes[noted.count] = hash_message(noted.key, message)
    noted.count += 1


# ── recognising ──────────────────────────────────────────────────────────────────────────────────


cdef inline bint make_copies(Copies* copies, const uint8_t* hashes, size_t count, size_t early) noexcept nogil:
    # A table of so many hashes, of which the first `early` are early. False when there is no memory.
    cdef size_t size = 16
    cdef size_t index, at
    cdef uint64_t hash
    while size < 2 * count:
        size *= 2
    free(copies.table)
    copies.table = <Copy*> calloc(size, sizeof(Copy))
    copies.mask = size - 1
    copies.missing = 0
    if copies.table == NULL:
        return False
    for index in range(count):
        hash = load_u64(hashes + 8 * index) or 1
        at = hash & copies.mask
        while copies.table[at].hash and copies.table[at].hash != hash:
            at = (at + 1) & copies.mask
        copies.table[at].hash = hash
        if index < early:
            copies.table[at].early += 1
        else:
            copies.table[at].late += 1
    copies.missing = count
    return True


cdef inline bint is_copy(Copies* copies, NatsMessage* message) noexcept nogil:
    # Whether the message is a copy of one in the table, which has one copy less from now on.
    cdef uint64_t hash = hash_message(copies.key, message)
    cdef size_t at = hash & copies.mask
    while copies.table[at].hash:
        if copies.table[at].hash == hash:
            if copies.table[at].early:
                copies.table[at].early -= 1
            elif copies.table[at].late:
                copies.table[at].late -= 1
            else:
                return False
            copies.missing -= 1
            return True
        at = (at + 1) & copies.mask
    return False


cdef inline void forget_early(Copies* copies) noexcept nogil:
    cdef size_t at
    for at in range(copies.mask + 1):
        copies.missing -= copies.table[at].early
        copies.table[at].early = 0


cdef inline void forget_all(Copies* copies) noexcept nogil:
    free(copies.table)
    memset(copies, 0, sizeof(Copies))
