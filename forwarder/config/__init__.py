"""What a user sets: keys and their values, read from a YAML file and the environment, with where
each came from.

Import from the modules: commands and clients that need an address or a unit of size don't load all
settings for it.
"""
