"""Which cluster a command speaks to, and what it asks of it first."""
