"""What commands do with the files of a daemon that may be down: audit, explain, export, drain."""
