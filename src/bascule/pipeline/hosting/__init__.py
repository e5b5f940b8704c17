"""Several pipelines in one Spark, and the socket through which commands reach them."""
