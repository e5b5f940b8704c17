"""Data directories of Go Liftbridge: their formats, and their import. See docs/internals/liftbridge-import.md"""
