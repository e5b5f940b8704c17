"""The documentation as its readers use it: pages, and a machine on which they can be followed."""
