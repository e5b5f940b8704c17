"""Commands that run pipelines on Spark, and inspect their results."""
