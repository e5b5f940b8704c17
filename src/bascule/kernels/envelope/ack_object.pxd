# An ack as a Python object, for kernels that pass one to a callback.

from bascule.kernels.envelope.messages cimport AckView

cdef object ack_object(AckView* view)
