"""Generated from proto/*.proto by `make proto`: message classes, nothing written by hand."""
