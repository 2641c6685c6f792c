"""The formats: what each vendor's record becomes. One file a format."""
