"""Planted bugs of archives and pipelines."""
