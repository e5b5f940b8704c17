"""A pipeline's YAML file: what can be written in it, typed and checked."""
