# The hot messages as Python objects, for kernels that hand one to a callback.

from bascule.kernels.envelope.messages cimport AckView

cdef object ack_object(AckView* view)
