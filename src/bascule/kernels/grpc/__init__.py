"""gRPC calls over HTTP/2, server and client."""
