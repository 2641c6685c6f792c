"""Property conditions, as flags, cohorts and batch exports have them."""
