"""Several processes as one daemon: the supervisor, its workers, and the
figures of all of them merged.
"""
