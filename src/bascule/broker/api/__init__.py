"""The RPCs that decode a request, decide, and answer: one file for each family. See docs/internals/api.md.

Publishing and subscribing are not among them: they are kernels.
"""
