"""What writing durably takes: group commit, locked directories, and named places where tests make it fail."""
