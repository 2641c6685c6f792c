"""What is handed out, proved as its user has it: `make release-check`."""
