# The hot protobuf messages for other kernels: what publishers send is viewed in place, what goes out is written straight into its buffer.
#
# Readers accept exactly the bytes that a protobuf parser accepts (unknown fields and groups are skipped, the last of several
# values wins, strings are UTF-8) and fill a view of pointers into these bytes: it lives as long as they do. They return False
# for anything else and then leave the view in no state to be used.
# Writers come in pairs: …_size() says what to reserve, write_…() fills exactly that and returns the position behind it.
# Texts that a publisher chose without protobuf around them (NATS subjects) are made valid UTF-8 while they are written.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

cdef enum AckPolicy:
    ACK_LEADER = 0
    ACK_ALL = 1
    ACK_NONE = 2                    # every other number is legal on the wire and treated like this one: no ack but for errors

cdef enum AckError:
    ACK_OK = 0
    ACK_UNKNOWN = 1
    ACK_INCORRECT_OFFSET = 2
    ACK_TOO_LARGE = 3
    ACK_ENCRYPTION = 4
    ACK_NOT_STORED = 1000           # the leader has handed over and stored nothing of it: who publishes it again publishes it once
    ACK_INVALID_PRODUCER = 1001
    ACK_PRODUCER_FENCED = 1002
    ACK_OUT_OF_SEQUENCE = 1003
    ACK_DISK_FULL = 1004

cdef enum:
    ENVELOPE_HEADER_SIZE = 8        # as we write it: without a checksum
    ENVELOPE_PUBLISH = 0
    ENVELOPE_ACK = 1

# A PublishRequest, a PublishToSubjectRequest or the Message of an envelope. Fields that are absent are empty: NULL with size 0, or 0.
cdef struct PublishView:
    const uint8_t* key
    const uint8_t* value
    const uint8_t* stream           # not of PublishToSubjectRequest; an envelope's is checked and ignored
    const uint8_t* subject          # PublishToSubjectRequest alone
    const uint8_t* ack_inbox
    const uint8_t* correlation_id
    const uint8_t* headers          # from the tag of the first map entry …
    const uint8_t* headers_end      # … to behind the last one; other fields may lie between them
    uint32_t key_size
    uint32_t value_size
    uint32_t stream_size
    uint32_t subject_size
    uint32_t ack_inbox_size
    uint32_t correlation_id_size
    uint32_t header_entries         # map entries on the wire, repeated names counted each time
    uint32_t headers_tag            # the tag that marks a map entry between headers and headers_end
    size_t headers_size             # of all entries, each with a tag of one byte and the shortest length in front
    int32_t partition
    int32_t ack_policy              # as sent, unknown numbers too
    int64_t expected_offset         # −1: any
    bint has_key                    # a key of no bytes is no key

cdef struct HeaderView:
    const uint8_t* name
    const uint8_t* value
    uint32_t name_size
    uint32_t value_size

cdef struct AckView:
    const uint8_t* stream
    const uint8_t* partition_subject
    const uint8_t* msg_subject
    const uint8_t* ack_inbox
    const uint8_t* correlation_id
    uint32_t stream_size
    uint32_t partition_subject_size
    uint32_t msg_subject_size
    uint32_t ack_inbox_size
    uint32_t correlation_id_size
    int64_t offset
    int64_t reception_timestamp
    int64_t commit_timestamp
    int32_t ack_policy
    int32_t error
    bint duplicate                  # stored before: `offset` is the original's, −1 when it is no longer known

# The header of a message without a value, which protobuf and NATS cannot express: the record gets no value, and the header is not stored.
# Delivery adds it again. It counts only if the value is empty.
cdef enum:
    TOMBSTONE_HEADER_SIZE = 17
cdef inline bint is_tombstone_header(const uint8_t* name, uint32_t size) noexcept nogil:
    return size == TOMBSTONE_HEADER_SIZE and memcmp(name, b"bascule-tombstone", TOMBSTONE_HEADER_SIZE) == 0

# ── reading ──────────────────────────────────────────────────────────────────────────────────────

cdef bint read_publish_request(const uint8_t* data, size_t size, PublishView* view) noexcept nogil
cdef bint read_publish_to_subject(const uint8_t* data, size_t size, PublishView* view) noexcept nogil
# The whole envelope, header and checksum included. expected_offset is the Message's offset, so 0 when the publisher set none.
cdef bint read_publish_envelope(const uint8_t* data, size_t size, PublishView* view) noexcept nogil
cdef bint read_ack(const uint8_t* data, size_t size, AckView* view) noexcept nogil
cdef bint read_ack_envelope(const uint8_t* data, size_t size, AckView* view) noexcept nogil

# A map entry of headers, without tag and length in front. 1: a header; 0: one with unknown fields, which is none; −1: not protobuf.
cdef int read_entry(const uint8_t* at, uint32_t size, HeaderView* header) noexcept nogil

# The headers of a view with map semantics: of entries with the same name the last one stays, in its place. Returns how many
# there are, or −1 when there are more entries on the wire than `capacity`: the work for one message is bounded by its size.
cdef Py_ssize_t collect_headers(PublishView* view, HeaderView* headers, size_t capacity) noexcept nogil
cdef Py_ssize_t keep_last(HeaderView* headers, size_t count) noexcept nogil
# The same in the encoding of records; returns its size, or −1 when it does not fit `capacity` or there are more entries than
# HEADER_ENTRIES_MAX. `count` gets the number of headers. view.headers_size bytes are always enough.
cdef enum:
    HEADER_ENTRIES_MAX = 4096
cdef Py_ssize_t write_record_headers(PublishView* view, uint8_t* out, size_t capacity, uint32_t* count) noexcept nogil

# ── writing ──────────────────────────────────────────────────────────────────────────────────────

# Publish envelope: key, value, headers, correlation id, policy and expected offset of the view; the inbox is the one given here.
cdef size_t publish_envelope_size(PublishView* view, uint32_t inbox_size) noexcept nogil
cdef uint8_t* write_publish_envelope(
    uint8_t* out, PublishView* view, const uint8_t* inbox, uint32_t inbox_size
) noexcept nogil

cdef size_t ack_size(AckView* ack) noexcept nogil
cdef uint8_t* write_ack(uint8_t* out, AckView* ack) noexcept nogil
cdef size_t ack_envelope_size(AckView* ack) noexcept nogil
cdef uint8_t* write_ack_envelope(uint8_t* out, AckView* ack) noexcept nogil

# PublishResponse{ack} and, if wanted, its own correlationId = that of the ack. Without it these are also the bytes of a
# PublishToSubjectResponse.
cdef size_t publish_response_size(AckView* ack, bint with_correlation_id) noexcept nogil
cdef uint8_t* write_publish_response(uint8_t* out, AckView* ack, bint with_correlation_id) noexcept nogil

# PublishResponse{asyncError{code, message}, correlationId, ack{}}: the ack is there and empty for clients that know no asyncError.
cdef size_t publish_error_size(int32_t code, uint32_t message_size, uint32_t correlation_id_size) noexcept nogil
cdef uint8_t* write_publish_error(
    uint8_t* out, int32_t code, const uint8_t* message, uint32_t message_size,
    const uint8_t* correlation_id, uint32_t correlation_id_size
) noexcept nogil
