"""Wiring: what makes a broker out of cores, logs and sockets."""
