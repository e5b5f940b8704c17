"""Whether and when a job that has failed is started again."""
