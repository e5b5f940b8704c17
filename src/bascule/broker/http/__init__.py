"""The broker's HTTP port: its life and its paths."""
