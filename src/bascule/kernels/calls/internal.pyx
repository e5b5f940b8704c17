# Messages of the broker itself: to internal streams sealed for the partition's leader, to other streams like those of a client.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

from bascule.kernels.calls.publish cimport (
    BROKERS_ONLY, DISCONNECTED, GOOD, MALFORMED, PAUSED, TOO_LARGE, PublishGate, Receiver, answer_to,
)
from bascule.kernels.calls.targets cimport Awaited, Target, awaited_ack
from bascule.kernels.envelope.messages cimport (
    ACK_ALL, ACK_LEADER, AckView, PublishView, ack_size, publish_envelope_size, read_publish_request, write_ack, write_publish_envelope,
)
from bascule.kernels.nats.protocol cimport write_pub

cdef bytes NOTHING = b""


cdef class InternalReceiver(Receiver):
    cdef PublishGate gate
    cdef Awaited awaited
    cdef object callback

    cdef int on_ack(self, AckView* ack) except -1:
        cdef bytes message
        if self.awaited is not None and not self.awaited.fits(ack):
            return 0
        message = PyBytes_FromStringAndSize(NULL, ack_size(ack))
        write_ack(<uint8_t*> PyBytes_AS_STRING(message), ack)
        return self.finish(message)

    cdef int lost(self) except -1:
        return self.finish(None)

    cdef int finish(self, bytes answer) except -1:
        callback = self.callback
        self.callback = None
        self.gate.forget(self)
        if callback is not None:
            callback(answer)
        return 0


cdef class InternalGate:
    cdef PublishGate gate
    cdef object seal                # SealedChannel.seal; None: no partition has a receiver

    def __init__(self, PublishGate gate not None, seal):
        self.gate = gate
        self.seal = seal

    def publish(self, bytes request not None, callback):
        cdef PublishView view
        cdef Target target
        cdef InternalReceiver receiver = None
        cdef int verdict = GOOD
        cdef bytes inbox = NOTHING
        if not read_publish_request(<const uint8_t*> PyBytes_AS_STRING(request), PyBytes_GET_SIZE(request), &view):
            return (*answer_to(MALFORMED), False)
        target = self.gate.judge(&view, &verdict)
        if verdict == BROKERS_ONLY:
            verdict = self.gate.judge_state(target, &view)
        if verdict == GOOD:
            if view.ack_policy == ACK_LEADER or view.ack_policy == ACK_ALL:
                receiver = InternalReceiver.__new__(InternalReceiver)
                receiver.gate = self.gate
                receiver.callback = callback
                receiver.awaited = awaited_ack(&view, target)
                inbox = self.gate.register(receiver)
            verdict = self.send(target, &view, inbox)
        if verdict != GOOD:
            self.cancel(receiver)
            return (*answer_to(verdict), verdict == PAUSED)
        return receiver

    cdef int send(self, Target target, PublishView* view, bytes inbox) except -1:
        if target.receiver is not None:
            return self.send_sealed(target, view, inbox)
        return self.gate.publish(
            <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject), view,
            <const uint8_t*> PyBytes_AS_STRING(inbox), <uint32_t> PyBytes_GET_SIZE(inbox),
        )

    cdef int send_sealed(self, Target target, PublishView* view, bytes inbox) except -1:
        # ingest/sealed.pyx has the format.
        cdef PublishGate gate = self.gate
        cdef size_t size = publish_envelope_size(view, <uint32_t> PyBytes_GET_SIZE(inbox))
        cdef bytes envelope = PyBytes_FromStringAndSize(NULL, size)
        cdef bytes payload
        if not gate.nats.connected:
            return DISCONNECTED
        write_publish_envelope(
            <uint8_t*> PyBytes_AS_STRING(envelope), view,
            <const uint8_t*> PyBytes_AS_STRING(inbox), <uint32_t> PyBytes_GET_SIZE(inbox),
        )
        payload = bytes((len(target.receiver),)) + target.receiver + envelope
        payload = <bytes?> self.seal(target.subject, payload) + payload
        if size > gate.payload_bytes_max or (gate.nats.max_payload and <size_t> len(payload) > gate.nats.max_payload):
            return TOO_LARGE
        if write_pub(
            gate.nats.output, <const uint8_t*> PyBytes_AS_STRING(target.subject), PyBytes_GET_SIZE(target.subject), NULL, 0,
            <const uint8_t*> PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
        ):
            raise MemoryError("no memory for what is to be published")
        gate.published += 1
        gate.shell.schedule_flush()
        return GOOD

    def cancel(self, InternalReceiver receiver):
        if receiver is not None:
            receiver.callback = None
            self.gate.forget(receiver)
