"""The sending half of an HTTP/2 connection: streams with something to send, windows of the peer, frames in `output`."""

from collections.abc import Callable
from typing import Any

from bascule.kernels.memory.account import MemoryAccount
from bascule.kernels.wire.output import OutputBuffer

class ConnectionLimits:
    """Bounds of one connection, shared by all of a server. What each is for stands in limits.py."""

    def __init__(
        self,
        *,
        streams_max: int,
        stream_window_bytes: int,
        connection_window_bytes: int,
        header_list_bytes_max: int,
        header_block_bytes_max: int,
        continuations_max: int,
        output_bytes_max: int,
        outgoing_bytes_max: int,
        message_bytes_max: int,
        assembly_bytes_max: int,
        resets_burst: int,
        resets_per_second: int,
        pings_burst: int,
        pings_per_second: int,
        settings_burst: int,
        settings_per_second: int,
        idle_frames_burst: int,
        idle_frames_per_second: int,
        turn_us_max: int = 0,
    ) -> None: ...
    @property
    def streams_max(self) -> int: ...
    @property
    def stream_window_bytes(self) -> int: ...
    @property
    def connection_window_bytes(self) -> int: ...
    @property
    def header_list_bytes_max(self) -> int: ...
    @property
    def header_block_bytes_max(self) -> int: ...
    @property
    def continuations_max(self) -> int: ...
    @property
    def output_bytes_max(self) -> int: ...
    @property
    def outgoing_bytes_max(self) -> int: ...
    @property
    def message_bytes_max(self) -> int: ...
    @property
    def assembly_bytes_max(self) -> int: ...
    @property
    def resets_burst(self) -> int: ...
    @property
    def resets_per_second(self) -> int: ...
    @property
    def pings_burst(self) -> int: ...
    @property
    def pings_per_second(self) -> int: ...
    @property
    def settings_burst(self) -> int: ...
    @property
    def settings_per_second(self) -> int: ...
    @property
    def idle_frames_burst(self) -> int: ...
    @property
    def idle_frames_per_second(self) -> int: ...
    @property
    def turn_us_max(self) -> int: ...

class Http2Stream:
    """One stream; not made by Python code itself."""

    @property
    def id(self) -> int: ...
    @property
    def half_closed(self) -> bool:
        """The peer has sent its last byte."""
    @property
    def closed(self) -> bool: ...

class Http2Sender:
    unsent: int
    """Set by the shell: bytes its transport still holds."""

    peer: Any
    """The shell's: who is at the other end."""

    on_output: Callable[[], Any] | None
    """Called at most once between two flushes, when there is something to send."""

    on_fault: Callable[[Exception], Any] | None
    """Called with what one of our own hooks raised."""

    @property
    def output(self) -> OutputBuffer:
        """Frames to be sent."""
    @property
    def memory(self) -> MemoryAccount | None:
        """Charged with all buffers of this connection; None when nothing counts them, and after `lost`."""
    def shed(self, down_to: int) -> None:
        """End the streams that hold most memory until the connection holds at most `down_to` bytes."""
    @property
    def closing(self) -> bool:
        """To be closed once `output` is sent; nothing more is read."""
    @property
    def draining(self) -> bool:
        """GOAWAY is out: streams go on, new ones are not looked at."""
    @property
    def error_code(self) -> int:
        """Of the GOAWAY that ended this connection."""
    @property
    def error_text(self) -> str: ...
    @property
    def last_stream_id(self) -> int: ...
    @property
    def limits(self) -> ConnectionLimits: ...
    @property
    def open_streams(self) -> int: ...
    @property
    def wants_flush(self) -> bool:
        """There is more to send than `output` had room for, and now it has."""
    @property
    def congested(self) -> bool:
        """So much waits to be sent that nothing more should be read."""
    def flush(self) -> None:
        """Cut frames from everything that is outgoing, as far as windows and the bound on output allow."""
    def go_away(self) -> None:
        """Tell the peer that streams it opens from now on will not be answered."""
    def close(self) -> None:
        """End all streams and the connection; it is `closing` afterwards."""
    def lost(self) -> None:
        """The transport is gone: end all streams and forget what was to be sent."""
