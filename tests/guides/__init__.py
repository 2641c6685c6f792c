"""The guides in docs/, compared with code, rules and tests."""
