"""The running program: the wiring of the pipeline, and the daemon with its
signals, restarts and drain.
"""
