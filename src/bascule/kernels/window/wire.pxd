# The codec of publish requests and responses: responses are read in place, requests are written directly into their buffer.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.envelope.messages cimport AckView

cdef enum:
    CORRELATION_ID_MAX = 20         # digits of a 64 bit number

cdef struct ResponseView:
    AckView ack
    const uint8_t* error_text
    const uint8_t* correlation_id
    uint32_t error_text_size
    uint32_t correlation_id_size
    int32_t error_code              # as sent, unknown numbers too
    bint has_ack
    bint has_error

# False for bytes that no protobuf parser accepts.
cdef bint read_publish_response(const uint8_t* data, size_t size, ResponseView* view) noexcept nogil
# Read an Ack; its fields replace those in `ack`. `depth` limits nested groups.
cdef bint merge_ack(const uint8_t* at, size_t size, int depth, AckView* ack) noexcept nogil

# Headers as map entries, tags included. TypeError for what is not str and bytes.
cdef bytes encode_headers(object headers, uint8_t field)
# A PublishRequest. `target` is its stream, partition and policy, `headers` its map entries, both as they go onto the wire.
cdef size_t publish_request_size(
    size_t target_size, size_t key_size, size_t value_size, size_t headers_size, size_t id_size, int64_t expected_offset
) noexcept nogil
cdef uint8_t* write_publish_request(
    uint8_t* out, const uint8_t* target, size_t target_size, const uint8_t* key, size_t key_size,
    const uint8_t* value, size_t value_size, const uint8_t* headers, size_t headers_size,
    const uint8_t* id, size_t id_size, int64_t expected_offset
) noexcept nogil
cdef uint32_t write_decimal(uint8_t* out, uint64_t number) noexcept nogil       # returns the number of digits
