"""Options of the Spark format, declared and checked."""
