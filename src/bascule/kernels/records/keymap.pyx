# The key map of compaction: the newest offset of every key in a fixed amount of memory, and the filter of batches that uses it.
#
#   slot, 24 bytes   hash_low u64 · hash_high u64 · offset + 1 u64       (0: the slot is free)
#
# Keys are stored as SipHash-2-4 with 128 bits and a random secret per run: publishers cannot construct keys that collide, and a
# random collision needs about 2^64 keys. Linear probing; a quarter of the slots stays free.

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from bascule.kernels.records.records cimport (
    ATTR_FOLLOWS_GAP, ATTR_SEALED, ATTRIBUTES_AT, BAD_RECORDS, BODY_BYTES_AT, COUNT_AT, CRC_AT, GOOD, HAS_KEY, HAS_VALUE,
    HEADER_SIZE, LENGTH_AT, MAX_TIMESTAMP_AT, SEALED, BatchView, RecordView, check_body, fault_name, open_body, read_record,
    view_batch,
)
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.checksum cimport crc32c_of, crc32c_setup
from bascule.kernels.wire.numbers cimport load_u64, store_u32, store_u64

crc32c_setup()


# ── SipHash-2-4, 128 bits ────────────────────────────────────────────────────────────────────────


cdef struct Hash:
    uint64_t low
    uint64_t high

cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef inline void sip_round(SipState* s) noexcept nogil:
    s.v0 += s.v1
    s.v1 = rotate(s.v1, 13) ^ s.v0
    s.v0 = rotate(s.v0, 32)
    s.v2 += s.v3
    s.v3 = rotate(s.v3, 16) ^ s.v2
    s.v0 += s.v3
    s.v3 = rotate(s.v3, 21) ^ s.v0
    s.v2 += s.v1
    s.v1 = rotate(s.v1, 17) ^ s.v2
    s.v2 = rotate(s.v2, 32)


cdef Hash siphash(const uint8_t* data, uint32_t size, uint64_t key0, uint64_t key1) noexcept nogil:
    cdef SipState s
    cdef Hash result
    cdef uint64_t word
    cdef uint32_t left = size
    cdef int index
    s.v0 = <uint64_t> 0x736f6d6570736575 ^ key0
    s.v1 = <uint64_t> 0x646f72616e646f6d ^ key1 ^ 0xee
    s.v2 = <uint64_t> 0x6c7967656e657261 ^ key0
    s.v3 = <uint64_t> 0x7465646279746573 ^ key1
    while left >= 8:
        word = load_u64(data)
        s.v3 ^= word
        sip_round(&s)
        sip_round(&s)
        s.v0 ^= word
        data += 8
        left -= 8
    word = <uint64_t> (size & 0xFF) << 56
    for index in range(left):
        word |= <uint64_t> data[index] << (8 * index)
    s.v3 ^= word
    sip_round(&s)
    sip_round(&s)
    s.v0 ^= word
    s.v2 ^= 0xee
    for index in range(4):
        sip_round(&s)
    result.low = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    s.v1 ^= 0xdd
    for index in range(4):
        sip_round(&s)
    result.high = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    return result


def siphash128(data, bytes secret not None):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* key = secret_bytes(secret)
    cdef Hash hashed = siphash(source.data, <uint32_t> source.size, load_u64(key), load_u64(key + 8))
    cdef uint8_t out[16]
    store_u64(out, hashed.low)
    store_u64(out + 8, hashed.high)
    return bytes(out[:16])


cdef const uint8_t* secret_bytes(bytes secret) except NULL:
    if len(secret) != 16:
        raise ValueError(f"the secret has {len(secret)} bytes, it needs 16")
    return <const uint8_t*> PyBytes_AS_STRING(secret)


# ── the map ──────────────────────────────────────────────────────────────────────────────────────


cdef struct Slot:
    uint64_t low
    uint64_t high
    uint64_t mark       # offset + 1


cdef class KeyMap:
    cdef Slot* slots
    cdef uint64_t slot_count
    cdef uint64_t used
    cdef uint64_t used_max
    cdef uint64_t key0
    cdef uint64_t key1

    def __cinit__(self, int64_t bytes_max, bytes secret not None):
        cdef const uint8_t* key = secret_bytes(secret)
        self.key0 = load_u64(key)
        self.key1 = load_u64(key + 8)
        if bytes_max < 4 * <int64_t> sizeof(Slot):
            raise ValueError(f"a key map of {bytes_max} bytes is too small; it needs at least {4 * sizeof(Slot)}")
        self.slot_count = <uint64_t> bytes_max // sizeof(Slot)
        self.used_max = self.slot_count // 4 * 3
        self.used = 0
        # calloc does not touch pages before their use, so a small log may request the full size
        self.slots = <Slot*> calloc(self.slot_count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError(f"no memory for a key map of {bytes_max} bytes")

    def __dealloc__(self):
        free(self.slots)

    @property
    def capacity(self):
        return self.used_max

    @property
    def count(self):
        return self.used

    @property
    def nbytes(self):
        return self.slot_count * sizeof(Slot)

    cdef inline Slot* find(self, const uint8_t* key, uint32_t size, Hash* hashed) noexcept nogil:
        # Returns the slot of the key, or the free slot for it. There is always a free one.
        cdef Slot* slot
        cdef uint64_t index
        hashed[0] = siphash(key, size, self.key0, self.key1)
        index = hashed.low % self.slot_count
        while True:
            slot = self.slots + index
            if slot.mark == 0 or (slot.low == hashed.low and slot.high == hashed.high):
                return slot
            index += 1
            if index == self.slot_count:
                index = 0

    cdef inline bint remember(self, const uint8_t* key, uint32_t size, int64_t offset) noexcept nogil:
        cdef Hash hashed
        cdef Slot* slot = self.find(key, size, &hashed)
        if slot.mark == 0:
            if self.used >= self.used_max:
                return False
            self.used += 1
            slot.low = hashed.low
            slot.high = hashed.high
        if <uint64_t> offset + 1 > slot.mark:
            slot.mark = <uint64_t> offset + 1
        return True

    cdef inline int64_t newest(self, const uint8_t* key, uint32_t size) noexcept nogil:
        cdef Hash hashed
        return <int64_t> (self.find(key, size, &hashed).mark - 1)

    def put(self, key, int64_t offset):
        cdef Bytes source = Bytes(key)
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        return self.remember(source.data, <uint32_t> source.size, offset)

    def get(self, key):
        cdef Bytes source = Bytes(key)
        return self.newest(source.data, <uint32_t> source.size)

    def learn(self, data, int64_t end_offset, Py_ssize_t start=0, int64_t first_offset=0):
        cdef Bytes source = Bytes(data)
        cdef const uint8_t* at = source.data + start
        cdef const uint8_t* end = source.data + source.size
        cdef int64_t next_offset = -1
        cdef bint full = False
        cdef int fault = GOOD
        cdef BatchView batch
        cdef Learned result
        if start < 0 or start > source.size:
            raise ValueError(f"start {start} is outside of the {source.size} bytes")
        result = Learned.__new__(Learned)
        with nogil:
            while at < end:
                fault = view_clear(at, end, &batch)
                if fault or batch.base_offset >= end_offset:
                    break
                next_offset = self.learn_batch(&batch, first_offset, end_offset)
                full = next_offset <= batch.last_offset and next_offset < end_offset
                if full:
                    break
                at = batch.end
        result.stop = source.size - (end - at)
        result.next_offset = next_offset
        result.full = full
        result.reason = fault_name(fault)
        return result

    cdef int64_t learn_batch(self, BatchView* batch, int64_t first_offset, int64_t end_offset) noexcept nogil:
        # Returns the offset below which all keys are in the map.
        cdef RecordView record
        cdef const uint8_t* at = open_body(batch)
        cdef uint32_t index
        for index in range(batch.count):
            at = read_record(at, batch, &record)
            if at == NULL:
                return batch.base_offset  # the bytes changed since they were checked
            if record.offset >= end_offset:
                return end_offset
            if not record.flags & HAS_KEY or record.offset < first_offset:
                continue
            if not self.remember(record.key, record.key_size, record.offset):
                return record.offset
        return min(batch.last_offset + 1, end_offset)


cdef class Learned:
    cdef readonly object stop, next_offset, full, reason


cdef inline int view_clear(const uint8_t* at, const uint8_t* end, BatchView* batch) noexcept nogil:
    # All batches are checked first, because a damaged batch must not get a new checksum.
    cdef int fault = view_batch(at, end, batch, True)
    if fault:
        return fault
    if batch.attributes & ATTR_SEALED:
        return SEALED
    return check_body(batch)


# ── sifting ──────────────────────────────────────────────────────────────────────────────────────


cdef class Sifted:
    cdef readonly object stop, kept, removed, gap, first_held, oldest_tombstone, reason


cdef struct Sieve:
    int64_t end_offset          # records at or after it are kept
    int64_t keep_since          # records at or after this time are kept
    int64_t tombstones_before
    int64_t first_held
    int64_t oldest_tombstone
    int64_t kept
    int64_t removed


cdef inline bint must_go(KeyMap keys, Sieve* sieve, RecordView* record) noexcept nogil:
    cdef bint superseded
    if not record.flags & HAS_KEY or record.offset >= sieve.end_offset:
        return False
    superseded = keys.newest(record.key, record.key_size) > record.offset
    if not superseded:
        if record.flags & HAS_VALUE:
            return False
        if record.timestamp >= sieve.tombstones_before:
            sieve.oldest_tombstone = min(sieve.oldest_tombstone, record.timestamp)
            return False
    if record.timestamp >= sieve.keep_since:
        if superseded and record.offset < sieve.first_held:
            sieve.first_held = record.offset
        return False
    return True


cdef uint8_t* sift_batch(KeyMap keys, Sieve* sieve, BatchView* batch, uint8_t* out, bint gap) noexcept nogil:
    # Writes the kept records to `out`, which has room for the whole batch. Returns the position after them: `out` itself if none
    # is kept.
    cdef RecordView record
    cdef const uint8_t* first = open_body(batch)
    cdef const uint8_t* at = first
    cdef const uint8_t* run = first         # the first record after the last removed one
    cdef const uint8_t* following
    cdef uint8_t* to = out + (first - batch.start)
    cdef uint32_t index
    cdef uint32_t kept = 0
    cdef int64_t max_timestamp = batch.first_timestamp
    for index in range(batch.count):
        following = read_record(at, batch, &record)
        if following == NULL:
            return NULL  # the bytes changed since they were checked
        if must_go(keys, sieve, &record):
            memcpy(to, run, at - run)
            to += at - run
            run = following
        else:
            kept += 1
            max_timestamp = record.timestamp
        at = following
    sieve.kept += kept
    sieve.removed += batch.count - kept
    if kept == 0:
        return out
    memcpy(to, run, at - run)
    to += at - run
    memcpy(out, batch.start, first - batch.start)
    if kept == batch.count and not gap:
        return to
    if gap:
        out[ATTRIBUTES_AT] |= ATTR_FOLLOWS_GAP
    store_u32(out + LENGTH_AT, <uint32_t> (to - out))
    store_u32(out + COUNT_AT, kept)
    store_u32(out + BODY_BYTES_AT, <uint32_t> (to - out - HEADER_SIZE))
    store_u64(out + MAX_TIMESTAMP_AT, <uint64_t> max_timestamp)
    store_u32(out + CRC_AT, crc32c_of(out + LENGTH_AT, to - out - LENGTH_AT, 0))
    return to


def sift(
    KeyMap keys not None, data, bytearray out not None, *,
    int64_t end_offset, int64_t keep_since, int64_t tombstones_before, bint gap, Py_ssize_t start=0,
):
    cdef Bytes source = Bytes(data)
    cdef const uint8_t* at = source.data + start
    cdef const uint8_t* end = source.data + source.size
    cdef Sieve sieve
    cdef BatchView batch
    cdef uint8_t* room
    cdef uint8_t* to
    cdef uint8_t* behind
    cdef int fault = GOOD
    cdef Sifted result
    if start < 0 or start > source.size:
        raise ValueError(f"start {start} is outside of the {source.size} bytes")
    sieve.end_offset = end_offset
    sieve.keep_since = keep_since
    sieve.tombstones_before = tombstones_before
    sieve.first_held = sieve.oldest_tombstone = INT64_MAX
    sieve.kept = sieve.removed = 0
    # the output is never larger than the input
    room = <uint8_t*> malloc(source.size - start + 1)
    if room == NULL:
        raise MemoryError(f"no memory to sift {source.size - start} bytes")
    to = room
    with nogil:
        while at < end:
            fault = view_clear(at, end, &batch)
            if fault:
                break
            behind = sift_batch(keys, &sieve, &batch, to, gap)
            if behind == NULL:
                fault = BAD_RECORDS
                break
            gap = behind == to
            to = behind
            at = batch.end
    try:
        out += (<char*> room)[:to - room]
    finally:
        free(room)
    result = Sifted.__new__(Sifted)
    result.stop = source.size - (end - at)
    result.kept = sieve.kept
    result.removed = sieve.removed
    result.gap = gap
    result.first_held = sieve.first_held
    result.oldest_tombstone = sieve.oldest_tombstone
    result.reason = fault_name(fault)
    return result
