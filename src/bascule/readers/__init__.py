"""Subscriptions, cursors and consumer groups on the server."""
