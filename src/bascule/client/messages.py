"""What is read and what is answered, under the names that users know."""

from __future__ import annotations

from bascule.kernels.client.messages import Message, MessageBatch
from bascule.kernels.window.window import Ack

__all__ = ["Ack", "Message", "MessageBatch"]
