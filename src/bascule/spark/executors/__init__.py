"""What the executors of a cluster need: a Python, the package, and the packages that it needs."""
