# The lines of the NATS client protocol, as a server sends them.
#
#     INFO {json}
#     MSG  <subject> <sid> [reply] <size>                       payload
#     HMSG <subject> <sid> [reply] <header size> <total size>   headers payload
#     PING   PONG   +OK   -ERR 'text'
#
# A line ends with LF, and a CR in front of that is not part of it. The operation may be in either case. Arguments are parted by runs
# of spaces and tabs, and hold no CR. Sizes and sids are decimal digits.

from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    ARGUMENTS_MAX = 5
    DIGITS_MAX = 18                 # fits 64 bits whatever the digits are

cdef enum Operation:
    OTHER = 0
    MSG
    HMSG
    PING
    PONG
    OK
    ERR
    INFO

# A line without its line break: the operation's arguments, parsed for MSG and HMSG.
cdef struct Line:
    const uint8_t* arguments
    size_t arguments_size
    int operation
    const uint8_t* subject
    size_t subject_size
    const uint8_t* reply            # NULL when there is none
    size_t reply_size
    uint64_t sid
    uint64_t headers_size
    uint64_t total_size


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    return byte == b" " or byte == b"\t"


cdef inline bint is_word(const uint8_t* at, size_t size, const char* word, size_t word_size) noexcept nogil:
    # `word` is in lower case. Setting the bit turns capitals into small letters and leaves + and - as they are.
    cdef size_t index
    if size != word_size:
        return False
    for index in range(size):
        if (at[index] | 0x20) != <uint8_t> word[index] or (at[index] & 0x80):
            return False
    return True


cdef inline int operation_of(const uint8_t* at, size_t size) noexcept nogil:
    if is_word(at, size, b"msg", 3):
        return MSG
    if is_word(at, size, b"hmsg", 4):
        return HMSG
    if is_word(at, size, b"ping", 4):
        return PING
    if is_word(at, size, b"pong", 4):
        return PONG
    if is_word(at, size, b"info", 4):
        return INFO
    # The second test: with the bit set, \x0b and \x0d look like + and -.
    if is_word(at, size, b"+ok", 3) and at[0] == b"+":
        return OK
    if is_word(at, size, b"-err", 4) and at[0] == b"-":
        return ERR
    return OTHER


cdef inline void split_line(const uint8_t* at, const uint8_t* end, Line* line) noexcept nogil:
    # The operation and what follows it, without the blanks around that.
    cdef const uint8_t* start = at
    while at < end and not is_blank(at[0]):
        at += 1
    line.operation = operation_of(start, at - start)
    while at < end and is_blank(at[0]):
        at += 1
    while end > at and is_blank((end - 1)[0]):
        end -= 1
    line.arguments = at
    line.arguments_size = end - at


cdef inline bint read_number(const uint8_t* at, size_t size, uint64_t* value) noexcept nogil:
    cdef uint64_t result = 0
    cdef size_t index
    if size == 0 or size > DIGITS_MAX:
        return False
    for index in range(size):
        if at[index] < b"0" or at[index] > b"9":
            return False
        result = result * 10 + (at[index] - <uint8_t> b"0")
    value[0] = result
    return True


cdef inline bint read_arguments(Line* line) noexcept nogil:
    # Parse the arguments of a MSG or HMSG. Returns False when they are malformed.
    cdef const uint8_t* at = line.arguments
    cdef const uint8_t* end = at + line.arguments_size
    cdef const uint8_t* starts[ARGUMENTS_MAX]
    cdef size_t sizes[ARGUMENTS_MAX]
    cdef int count = 0
    cdef int least = 4 if line.operation == HMSG else 3
    while at < end:
        if count == ARGUMENTS_MAX:
            return False
        starts[count] = at
        while at < end and not is_blank(at[0]):
            if at[0] == b"\r":
                return False
            at += 1
        sizes[count] = at - starts[count]
        count += 1
        while at < end and is_blank(at[0]):
            at += 1
    if count != least and count != least + 1:
        return False
    line.subject = starts[0]
    line.subject_size = sizes[0]
    line.reply = starts[2] if count > least else NULL
    line.reply_size = sizes[2] if count > least else 0
    if not read_number(starts[1], sizes[1], &line.sid):
        return False
    if not read_number(starts[count - 1], sizes[count - 1], &line.total_size):
        return False
    line.headers_size = 0
    if line.operation == HMSG and not read_number(starts[count - 2], sizes[count - 2], &line.headers_size):
        return False
    return line.headers_size <= line.total_size
