# NATS messages that cannot be dealt with yet: copied, one behind the other, in the order in which they came.
#
#   u32 sizes of subject, reply, headers and payload · these

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from bascule.kernels.nats.protocol cimport NatsMessage
from bascule.kernels.wire.numbers cimport load_u32, store_u32

cdef enum:
    HELD_FIRST = 4096
    HELD_PRELUDE = 16

cdef struct HeldMessages:
    uint8_t* data                   # the owner's to free
    size_t size
    size_t capacity
    uint64_t count


cdef inline uint8_t* put_part(uint8_t* at, const uint8_t* part, size_t size) noexcept nogil:
    if size:
        memcpy(at, part, size)
    return at + size


cdef inline bint hold_message(HeldMessages* held, NatsMessage* message) noexcept nogil:
    # False when there is no memory.
    cdef size_t wanted = (
        held.size + HELD_PRELUDE + message.subject_size + message.reply_size + message.headers_size + message.payload_size
    )
    cdef size_t capacity = held.capacity if held.capacity else HELD_FIRST
    cdef uint8_t* at
    if wanted > held.capacity:
        while capacity < wanted:
            capacity *= 2
        at = <uint8_t*> realloc(held.data, capacity)
        if at == NULL:
            return False
        held.data = at
        held.capacity = capacity
    at = held.data + held.size
    store_u32(at, <uint32_t> message.subject_size)
    store_u32(at + 4, <uint32_t> message.reply_size)
    store_u32(at + 8, <uint32_t> message.headers_size)
    store_u32(at + 12, <uint32_t> message.payload_size)
    at = put_part(at + HELD_PRELUDE, message.subject, message.subject_size)
    at = put_part(at, message.reply, message.reply_size)
    at = put_part(at, message.headers, message.headers_size)
    put_part(at, message.payload, message.payload_size)
    held.size = wanted
    held.count += 1
    return True


cdef inline const uint8_t* next_held(const uint8_t* at, NatsMessage* message) noexcept nogil:
    # The message at `at`, which has to be one; returns the position behind it.
    message.subject_size = load_u32(at)
    message.reply_size = load_u32(at + 4)
    message.headers_size = load_u32(at + 8)
    message.payload_size = load_u32(at + 12)
    message.subject = at + HELD_PRELUDE
    message.reply = message.subject + message.subject_size
    message.headers = message.reply + message.reply_size
    message.payload = message.headers + message.headers_size
    if message.reply_size == 0:
        message.reply = NULL
    if message.headers_size == 0:
        message.headers = NULL
    return message.payload + message.payload_size


cdef inline bint are_held_messages(const uint8_t* at, size_t size) noexcept nogil:
    # Whether the bytes, which another broker sent, are whole messages as next_held() reads them.
    cdef size_t taken
    while size:
        if size < HELD_PRELUDE:
            return False
        taken = <size_t> HELD_PRELUDE + load_u32(at) + load_u32(at + 4) + load_u32(at + 8) + load_u32(at + 12)
        if taken > size:
            return False
        at += taken
        size -= taken
    return True
