"""What is read and what is answered, under the names that users know."""

from __future__ import annotations

from bascule.kernels.client_messages import Message, MessageBatch
from bascule.kernels.publish_window import Ack

__all__ = ["Ack", "Message", "MessageBatch"]
