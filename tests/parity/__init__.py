"""Every kernel against a plain-Python twin written from `docs/internals/formats.md`: same answer, or same error."""
