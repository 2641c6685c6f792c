"""A newcomer's first hour, typed as the documents say: `make first-hour`."""
