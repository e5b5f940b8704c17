"""Record batches to Arrow columns."""
