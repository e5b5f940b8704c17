"""HTTP/2 for a server (RFC 9113), without IO: streams that clients open, what a client may not do."""

from bascule.kernels.http2.connection import Http2Connection

class Http2Server(Http2Connection): ...
