"""Policies: their lines, and the models that decide by them. See docs/internals/policies.md."""
