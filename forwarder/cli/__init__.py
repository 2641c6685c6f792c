"""The commands: each parses, calls what is below, and prints. Heavy parts are imported by the
command that needs them, when it runs.
"""
