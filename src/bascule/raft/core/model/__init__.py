"""Entries, events, effects and messages: the values that a Raft node works on."""
