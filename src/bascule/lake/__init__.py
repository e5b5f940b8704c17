"""Archives: streams in Parquet files, a log of commits that says what belongs to them, and the proof that they are whole. No Spark."""
