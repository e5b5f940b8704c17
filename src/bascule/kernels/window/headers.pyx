# Headers of many messages at once, as map entries of a PublishRequest, or with another field number of another request.
#
# Those of the caller come as columns: where the entries of each message end, where each name and value ends. The message's own
# timestamp follows, then the header of a message without a value, then the headers of an idempotent producer: id and epoch, the same for
# all, and a sequence that increases by one.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from bascule.kernels.window.columns cimport Column, new_column
from bascule.kernels.window.window cimport checked_ends
from bascule.kernels.window.wire cimport CORRELATION_ID_MAX, encode_headers, write_decimal
from bascule.kernels.wire.buffers cimport Bytes
from bascule.kernels.wire.numbers cimport varint_size
from bascule.kernels.wire.protobuf cimport write_length

cdef enum:
    REQUEST_HEADERS_FIELD = 5

cdef bytes SEQUENCE_NAME = b"bascule-sequence"
cdef bytes TIMESTAMP_NAME = b"bascule-timestamp"
cdef bytes TOMBSTONE_NAME = b"bascule-tombstone"


cdef inline size_t entry_size(size_t name_size, size_t value_size) noexcept nogil:
    cdef size_t size = 2 + varint_size(name_size) + name_size + varint_size(value_size) + value_size
    return 1 + varint_size(size) + size


cdef inline uint8_t* write_entry(
    uint8_t* out, uint8_t field, const uint8_t* name, size_t name_size, const uint8_t* value, size_t value_size
) noexcept nogil:
    # Name and value are written even when they are empty.
    out = write_length(out, field, 2 + varint_size(name_size) + name_size + varint_size(value_size) + value_size)
    out = write_length(out, 1, name_size)
    memcpy(out, name, name_size)
    out = write_length(out + name_size, 2, value_size)
    memcpy(out, value, value_size)
    return out + value_size


cdef class Entries:
    # Checked columns of names and values.
    cdef Bytes names
    cdef Bytes values
    cdef Column name_ends
    cdef Column value_ends
    cdef Column row_ends

    def __cinit__(self, Py_ssize_t count, row_ends, names, name_ends, values, value_ends):
        cdef Py_ssize_t entries
        self.names = Bytes(names)
        self.values = Bytes(values)
        self.name_ends = checked_ends("name_ends", name_ends, self.names.size)
        self.value_ends = checked_ends("value_ends", value_ends, self.values.size)
        entries = <Py_ssize_t> self.name_ends.size // 8
        if self.value_ends.size != self.name_ends.size:
            raise ValueError(f"there are {self.value_ends.size // 8} values for {entries} names")
        self.row_ends = checked_ends("row_ends", row_ends, entries)
        if <Py_ssize_t> self.row_ends.size // 8 != count:
            raise ValueError(f"there are headers of {self.row_ends.size // 8} messages for {count} messages")

    cdef size_t measure(self) except? 0:
        cdef const int64_t* name_ends = <const int64_t*> self.name_ends.data
        cdef const int64_t* value_ends = <const int64_t*> self.value_ends.data
        cdef const int64_t* row_ends = <const int64_t*> self.row_ends.data
        cdef Py_ssize_t rows = <Py_ssize_t> self.row_ends.size // 8
        cdef Py_ssize_t entry
        cdef int64_t name_start = 0, value_start = 0
        cdef size_t size = 0
        for entry in range(row_ends[rows - 1] if rows else 0):
            if name_ends[entry] - name_start + value_ends[entry] - value_start > INT32_MAX - 64:
                raise ValueError("a header has less than 2 GiB")
            size += entry_size(name_ends[entry] - name_start, value_ends[entry] - value_start)
            name_start = name_ends[entry]
            value_start = value_ends[entry]
        return size

    cdef uint8_t* write_row(self, uint8_t* out, uint8_t field, Py_ssize_t row) noexcept:
        cdef const int64_t* name_ends = <const int64_t*> self.name_ends.data
        cdef const int64_t* value_ends = <const int64_t*> self.value_ends.data
        cdef const int64_t* row_ends = <const int64_t*> self.row_ends.data
        cdef int64_t entry, name_start, value_start
        for entry in range(row_ends[row - 1] if row else 0, row_ends[row]):
            name_start = name_ends[entry - 1] if entry else 0
            value_start = value_ends[entry - 1] if entry else 0
            out = write_entry(
                out, field, self.names.data + name_start, name_ends[entry] - name_start,
                self.values.data + value_start, value_ends[entry] - value_start,
            )
        return out


cdef uint8_t* write_decimal_entry(uint8_t* out, uint8_t field, bytes name, int64_t number) noexcept:
    cdef uint8_t digits[CORRELATION_ID_MAX]
    return write_entry(
        out, field, <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), digits, write_decimal(digits, number)
    )


cdef Bytes checked_timestamps(object timestamps, Py_ssize_t count):
    cdef object view = memoryview(timestamps)
    if view.itemsize != 8 or view.ndim != 1 or view.format not in ("q", "l", "<q", "<l") or len(view) != count:
        raise ValueError(f"timestamps have to be a buffer of {count} 64 bit integers")
    return Bytes(view)


def encode_publish_headers(
    Py_ssize_t count, entries=None, timestamps=None, *, tombstones=None, bytes producer=None, int64_t epoch=0, int64_t sequence=0,
    uint8_t field=REQUEST_HEADERS_FIELD,
):
    if count < 0 or epoch < 0 or not 0 <= sequence <= INT64_MAX - count:
        raise ValueError("count, epoch and sequence are not negative")
    cdef Entries own = None if entries is None else Entries(count, *entries)
    cdef bytes fixed = b"" if producer is None else encode_headers(
        {"bascule-producer": producer, "bascule-epoch": b"%d" % epoch}, field
    )
    cdef size_t fixed_size = PyBytes_GET_SIZE(fixed)
    cdef size_t name_size = PyBytes_GET_SIZE(SEQUENCE_NAME)
    # Sized for the longest numbers; the unused rest is cut off.
    cdef Bytes times = None if timestamps is None else checked_timestamps(timestamps, count)
    cdef size_t each = 0 if producer is None else fixed_size + entry_size(name_size, CORRELATION_ID_MAX)
    if times is not None:
        each += entry_size(PyBytes_GET_SIZE(TIMESTAMP_NAME), CORRELATION_ID_MAX)
    cdef Bytes without_value = None if tombstones is None else Bytes(tombstones)
    if without_value is not None:
        if <Py_ssize_t> without_value.size != count:
            raise ValueError(f"tombstones have to be a buffer of {count} bytes")
        each += entry_size(PyBytes_GET_SIZE(TOMBSTONE_NAME), 1)
    cdef size_t size = (own.measure() if own is not None else 0) + each * <size_t> count
    cdef bytes text = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(text)
    cdef uint8_t* out = start
    cdef Column ends = new_column(b"q", 8 * <size_t> count)
    cdef Py_ssize_t row
    for row in range(count):
        if own is not None:
            out = own.write_row(out, field, row)
        if times is not None and (<const int64_t*> times.data)[row] >= 0:
            out = write_decimal_entry(out, field, TIMESTAMP_NAME, (<const int64_t*> times.data)[row])
        if without_value is not None and without_value.data[row]:
            out = write_decimal_entry(out, field, TOMBSTONE_NAME, 1)
        if producer is not None:
            memcpy(out, PyBytes_AS_STRING(fixed), fixed_size)
            out = write_decimal_entry(out + fixed_size, field, SEQUENCE_NAME, sequence + row)
        (<int64_t*> ends.data)[row] = out - start
    ends.size = 8 * <size_t> count
    return memoryview(text)[: out - start], memoryview(ends)
