"""HPACK, and the header blocks of requests and responses."""
