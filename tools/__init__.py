"""Tools for working on Bascule itself; nothing here is installed."""
