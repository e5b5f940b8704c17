"""The hot protobuf messages. Their readers and writers are for kernels, see `messages.pxd`."""

from typing import Final

LEADER: Final[int]
ALL: Final[int]
NONE: Final[int]
"""Ack policies."""

OK: Final[int]
UNKNOWN_ERROR: Final[int]
INCORRECT_OFFSET: Final[int]
TOO_LARGE: Final[int]
ENCRYPTION: Final[int]
NOT_STORED: Final[int]
INVALID_PRODUCER: Final[int]
PRODUCER_FENCED: Final[int]
OUT_OF_SEQUENCE: Final[int]
DISK_FULL: Final[int]
"""What an ack says about its message."""
