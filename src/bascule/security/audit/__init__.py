"""The audit log: a chain of records about changes and refusals. See docs/internals/audit.md."""
