"""Record batches: building, checking, searching, compacting, producers."""
