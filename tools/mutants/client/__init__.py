"""Planted bugs of the client."""
