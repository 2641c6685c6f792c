"""Durable files: group commit, state directories with their locks, private and atomic files, and
failpoints for tests.
"""
