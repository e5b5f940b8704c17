"""A pipeline tried out: a look at what its steps do to some messages, and tests with given messages."""
