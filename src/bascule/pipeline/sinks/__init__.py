"""Where the rows of a batch go, each of them exactly once however often the batch comes."""
