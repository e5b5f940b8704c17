"""All work that is done per message: Cython over whole buffers, without a Python object for each.

A kernel imports nothing of ours but other kernels, takes its limits as arguments and never trusts a length it reads.
"""
