"""Commands that run pipelines on Spark."""
