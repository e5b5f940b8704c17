"""Opening a log after a stop or a crash, and cutting it back."""
