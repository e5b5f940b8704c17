"""What a pipeline can be: one file a job."""
