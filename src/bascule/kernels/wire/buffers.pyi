"""Read access to the bytes of any object that has a buffer; Python code has no use for it."""
