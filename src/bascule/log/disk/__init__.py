"""File operations, handles, checkpoints, encryption and compression."""
