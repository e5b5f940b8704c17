"""What the partition log decides: where to look, what to keep, what to delete."""
