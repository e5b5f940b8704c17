"""Commands for one machine: start a broker, check its configuration, files and surroundings."""
