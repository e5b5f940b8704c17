"""Operating a cluster from Python: status, drain, moves, elections."""
