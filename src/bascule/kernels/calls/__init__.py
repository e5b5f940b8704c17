"""The server's publish and subscribe calls."""
