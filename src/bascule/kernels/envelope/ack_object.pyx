# An ack as a Python object. See ack_object.pxd.

from collections import namedtuple

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from bascule.kernels.envelope.messages cimport AckView

Ack = namedtuple(
    "Ack",
    "stream partition_subject msg_subject offset ack_inbox correlation_id ack_policy reception_timestamp commit_timestamp error duplicate",
    defaults=(False,),
)


cdef inline bytes copied(const uint8_t* data, size_t size):
    return PyBytes_FromStringAndSize(<const char*> data, size)


cdef object ack_object(AckView* view):
    return Ack(
        copied(view.stream, view.stream_size), copied(view.partition_subject, view.partition_subject_size),
        copied(view.msg_subject, view.msg_subject_size), view.offset, copied(view.ack_inbox, view.ack_inbox_size),
        copied(view.correlation_id, view.correlation_id_size), view.ack_policy, view.reception_timestamp,
        view.commit_timestamp, view.error, bool(view.duplicate),
    )
