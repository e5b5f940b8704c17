"""Archives: Delta tables of streams, in folders and object stores, and the proof that they are whole. No Spark."""
