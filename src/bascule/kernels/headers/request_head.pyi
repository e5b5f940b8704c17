"""What the header block of a request says: checked as RFC 9113 §8 wants it and read as gRPC means it."""

from typing_extensions import Buffer

from bascule.kernels.headers.hpack import HpackDecoder

class RequestHead:
    @property
    def path(self) -> bytes | None: ...
    @property
    def metadata(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def timeout(self) -> float:
        """Seconds, −1 without."""
    @property
    def content_length(self) -> int:
        """−1 without."""
    @property
    def malformed(self) -> bool:
        """To be answered with RST_STREAM (RFC 9113 §8.1.1)."""
    @property
    def too_large(self) -> bool: ...
    @property
    def is_post(self) -> bool: ...
    @property
    def is_connect(self) -> bool: ...
    @property
    def is_grpc(self) -> bool: ...
    @property
    def bad_metadata(self) -> bool: ...
    @property
    def bad_timeout(self) -> bool: ...
    @property
    def encoding(self) -> int:
        """0 identity, 1 gzip, 2 deflate, 3 something else."""

def read_head(decoder: HpackDecoder, block: Buffer) -> RequestHead | None:
    """The head that a block comes to; None when it is no block at all."""
