# Messages as a subscriber receives them, for other kernels.
#
# A message is read in two parts. Its head are the fields that differ from message to message: offset, key, value, timestamp. Its tail
# is everything from the first other field on: stream, partition, subject, reply, headers. Servers send the same tail again and again;
# bytes that equal those of the previous message are neither read nor stored again.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from bascule.kernels.window.columns cimport Column

cdef struct MessageHead:
    const uint8_t* key              # NULL with size 0 if absent, like the value
    const uint8_t* value
    const uint8_t* tail
    uint32_t key_size
    uint32_t value_size
    uint32_t tail_size
    int64_t offset
    int64_t timestamp

# Positions of the fields in the bytes of a tail.
cdef struct TailView:
    uint32_t size
    int32_t partition
    uint32_t stream_at
    uint32_t stream_size
    uint32_t subject_at
    uint32_t subject_size
    uint32_t reply_at
    uint32_t reply_size
    uint32_t headers_at             # the tag of the first map entry; headers_end is 0 when there is none
    uint32_t headers_end
    bint is_tombstone               # it has the header `bascule-tombstone`: an empty value is none

cdef enum:
    TAIL_BROKEN = -1                # not protobuf
    TAIL_GOOD = 0
    TAIL_HAS_HEAD_FIELDS = 1        # valid, but it changed the head: not reusable for another message

# False for bytes that no protobuf parser accepts.
cdef bint read_head(const uint8_t* data, size_t size, MessageHead* head) noexcept nogil
cdef int read_tail(MessageHead* head, TailView* tail) noexcept nogil


cdef class Origin:
    # The tail of one or more messages. Texts are decoded once, on access.
    cdef bytes tail                 # None if it was made from texts
    cdef TailView view
    cdef str stream_text
    cdef str subject_text
    cdef str reply_text
    cdef dict given_headers
    cdef str stream(self)
    cdef str subject(self)
    cdef str reply(self)
    cdef dict headers(self, bint has_value)     # a new one each time


cdef class Message:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly bytes key
    cdef readonly bytes value
    cdef Origin origin
    cdef dict own_headers


cdef class MessageBatch:
    cdef readonly Py_ssize_t count
    cdef Column offset_column       # int64
    cdef Column timestamp_column    # int64
    cdef Column value_column
    cdef Column value_end_column    # int64, a 0 in front
    cdef Column key_column
    cdef Column key_end_column      # int64, a 0 in front
    cdef Column origin_column       # int32: which of the tails a message has
    cdef Column tail_column         # bytes of all tails, concatenated
    cdef Column view_column         # a TailView for each
    cdef Column tail_at_column      # int64: start of each tail
    cdef int32_t tails
    cdef bint last_tail_usable
    cdef list origins               # Origin objects made so far, else None
    # Add a message. Returns 0, or 1 without a change if it is not protobuf. Only before the batch is delivered.
    cdef int add(self, const uint8_t* data, size_t size) except -1
    cdef int add_tail(self, MessageHead* head, TailView* view) except -1
    cdef int add_head(self, MessageHead* head) except -1
    cdef int add_row(self, MessageBatch source, Py_ssize_t index, bint same_tail) except -1
    cdef size_t bytes_used(self) noexcept
    cdef void complete(self) noexcept                       # nothing more will be added
    cdef Origin origin_of(self, Py_ssize_t index)
    cdef Message message_at(self, Py_ssize_t index)
    cdef bint is_tombstone(self, Py_ssize_t index) noexcept
    cdef bytes value_at(self, Py_ssize_t index)
    cdef bytes key_at(self, Py_ssize_t index)
    cdef Py_ssize_t checked(self, Py_ssize_t index) except -1


# Initial room: `bytes_expected` for keys, values and tails, `messages_expected` for messages.
cdef MessageBatch new_batch(size_t bytes_expected, size_t messages_expected)
cdef bint is_empty_message(MessageHead* head, TailView* tail) noexcept nogil
