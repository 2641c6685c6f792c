"""The guides in docs/, held against code, rules and tests."""
