# The messages that kernels read and write, as Python objects.

from collections import namedtuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t

from bascule.kernels.envelope.ack_object cimport ack_object
from bascule.kernels.envelope.messages cimport (
    HEADER_ENTRIES_MAX, AckView, HeaderView, PublishView, ack_envelope_size, collect_headers, publish_envelope_size,
    publish_error_size, publish_response_size, read_ack_envelope, read_publish_envelope, read_publish_request,
    read_publish_to_subject, write_ack_envelope, write_publish_envelope, write_publish_error, write_publish_response,
    write_record_headers,
)
from bascule.kernels.wire.buffers cimport Bytes

Publish = namedtuple(
    "Publish", "key value stream partition subject headers ack_inbox correlation_id ack_policy expected_offset",
)


cdef inline bytes copied(const uint8_t* data, size_t size):
    return PyBytes_FromStringAndSize(<const char*> data, size)


cdef object headers_object(PublishView* view):
    cdef HeaderView headers[HEADER_ENTRIES_MAX]
    cdef Py_ssize_t count = collect_headers(view, headers, HEADER_ENTRIES_MAX)
    cdef Py_ssize_t index
    if count < 0:
        return None
    return tuple([
        (copied(headers[index].name, headers[index].name_size), copied(headers[index].value, headers[index].value_size))
        for index in range(count)
    ])


cdef object publish_object(PublishView* view):
    return Publish(
        copied(view.key, view.key_size), copied(view.value, view.value_size), copied(view.stream, view.stream_size),
        view.partition, copied(view.subject, view.subject_size), headers_object(view),
        copied(view.ack_inbox, view.ack_inbox_size), copied(view.correlation_id, view.correlation_id_size),
        view.ack_policy, view.expected_offset,
    )


cdef int view_of_ack(object ack, AckView* view) except -1:
    # The view points into the bytes of `ack`, which must outlive it.
    cdef bytes stream = ack.stream, partition_subject = ack.partition_subject, msg_subject = ack.msg_subject
    cdef bytes ack_inbox = ack.ack_inbox, correlation_id = ack.correlation_id
    view.stream = <const uint8_t*> PyBytes_AS_STRING(stream)
    view.stream_size = len(stream)
    view.partition_subject = <const uint8_t*> PyBytes_AS_STRING(partition_subject)
    view.partition_subject_size = len(partition_subject)
    view.msg_subject = <const uint8_t*> PyBytes_AS_STRING(msg_subject)
    view.msg_subject_size = len(msg_subject)
    view.ack_inbox = <const uint8_t*> PyBytes_AS_STRING(ack_inbox)
    view.ack_inbox_size = len(ack_inbox)
    view.correlation_id = <const uint8_t*> PyBytes_AS_STRING(correlation_id)
    view.correlation_id_size = len(correlation_id)
    view.offset = ack.offset
    view.ack_policy = ack.ack_policy
    view.reception_timestamp = ack.reception_timestamp
    view.commit_timestamp = ack.commit_timestamp
    view.error = ack.error
    view.duplicate = ack.duplicate
    return 0


def parse_publish_request(data):
    cdef Bytes source = Bytes(data)
    cdef PublishView view
    return publish_object(&view) if read_publish_request(source.data, source.size, &view) else None


def parse_publish_to_subject(data):
    cdef Bytes source = Bytes(data)
    cdef PublishView view
    return publish_object(&view) if read_publish_to_subject(source.data, source.size, &view) else None


def parse_publish_envelope(data):
    cdef Bytes source = Bytes(data)
    cdef PublishView view
    return publish_object(&view) if read_publish_envelope(source.data, source.size, &view) else None


def parse_ack_envelope(data):
    cdef Bytes source = Bytes(data)
    cdef AckView view
    return ack_object(&view) if read_ack_envelope(source.data, source.size, &view) else None


def record_headers(envelope):
    cdef Bytes source = Bytes(envelope)
    cdef PublishView view
    cdef uint32_t count = 0
    cdef Py_ssize_t size
    cdef bytes out
    if not read_publish_envelope(source.data, source.size, &view):
        return None
    out = PyBytes_FromStringAndSize(NULL, view.headers_size)
    size = write_record_headers(&view, <uint8_t*> PyBytes_AS_STRING(out), view.headers_size, &count)
    return (count, out[:size]) if size >= 0 else None


def publish_envelope(request, bytes inbox not None=b"", *, bint to_subject=False):
    cdef Bytes source = Bytes(request)
    cdef PublishView view
    cdef bytes out
    cdef uint8_t* start
    cdef bint good = (
        read_publish_to_subject(source.data, source.size, &view) if to_subject
        else read_publish_request(source.data, source.size, &view)
    )
    if not good:
        return None
    out = PyBytes_FromStringAndSize(NULL, publish_envelope_size(&view, len(inbox)))
    start = <uint8_t*> PyBytes_AS_STRING(out)
    if write_publish_envelope(start, &view, <const uint8_t*> PyBytes_AS_STRING(inbox), len(inbox)) != start + len(out):
        raise AssertionError("the envelope has another size than was reserved")
    return out


def ack_envelope(ack):
    cdef AckView view
    cdef bytes out
    cdef uint8_t* start
    view_of_ack(ack, &view)
    out = PyBytes_FromStringAndSize(NULL, ack_envelope_size(&view))
    start = <uint8_t*> PyBytes_AS_STRING(out)
    if write_ack_envelope(start, &view) != start + len(out):
        raise AssertionError("the ack has another size than was reserved")
    return out


def publish_response(ack, *, bint with_correlation_id=True):
    cdef AckView view
    cdef bytes out
    cdef uint8_t* start
    view_of_ack(ack, &view)
    out = PyBytes_FromStringAndSize(NULL, publish_response_size(&view, with_correlation_id))
    start = <uint8_t*> PyBytes_AS_STRING(out)
    if write_publish_response(start, &view, with_correlation_id) != start + len(out):
        raise AssertionError("the response has another size than was reserved")
    return out


def publish_error(int32_t code, bytes message not None, bytes correlation_id not None=b""):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, publish_error_size(code, len(message), len(correlation_id)))
    cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(out)
    cdef uint8_t* end = write_publish_error(
        start, code, <const uint8_t*> PyBytes_AS_STRING(message), len(message),
        <const uint8_t*> PyBytes_AS_STRING(correlation_id), len(correlation_id),
    )
    if end != start + len(out):
        raise AssertionError("the response has another size than was reserved")
    return out
