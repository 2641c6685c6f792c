"""The crash test of the archive: what was accepted is in whole files, at least once, however often
its process is killed.
"""
