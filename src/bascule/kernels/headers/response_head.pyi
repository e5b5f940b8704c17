"""What the header block or the trailers of a response say: checked as RFC 9113 §8 wants it and read as gRPC means it."""

class ResponseHead:
    @property
    def http_status(self) -> int:
        """−1 without."""
    @property
    def status(self) -> int:
        """Of grpc-status: −1 without, −2 when it is no number."""
    @property
    def message(self) -> bytes | None:
        """Of grpc-message, percent-decoded."""
    @property
    def metadata(self) -> list[tuple[bytes, bytes]]:
        """Without pseudo headers and grpc's own; -bin decoded, those that cannot be are left out."""
    @property
    def content_type(self) -> bytes | None: ...
    @property
    def content_length(self) -> int:
        """−1 without."""
    @property
    def malformed(self) -> bool:
        """RFC 9113 §8.1.1."""
    @property
    def too_large(self) -> bool: ...
    @property
    def is_grpc(self) -> bool: ...
    @property
    def encoding(self) -> int:
        """0 identity, 1 gzip, 2 deflate, 3 something else."""
