"""Log files and standard input: followed, split into records, parsed, and mapped to events."""
