"""Planted bugs of the compiled kernels."""
