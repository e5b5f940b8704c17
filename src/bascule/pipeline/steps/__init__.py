"""What is done to rows on their way: decoding, and the steps of a pipeline's file."""
