"""Authentication and authorization of clients. See docs/internals/identity.md."""
