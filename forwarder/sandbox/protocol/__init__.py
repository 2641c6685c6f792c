"""The wire as the sandbox reads and writes it, by code of its own: HTTP answers, JSON, times,
property conditions.
"""
