"""The settings of a server, one file for each section of the configuration."""
