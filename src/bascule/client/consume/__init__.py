"""Subscriptions, cursors and consumer groups of the client."""
