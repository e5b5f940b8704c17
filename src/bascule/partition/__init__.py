"""A partition's life on one server: ingest, leading, following, handing over."""
