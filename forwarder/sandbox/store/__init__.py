"""The sandbox's state: one SQLite database with every arrival, and what is derived from it."""
