"""The running program: the pipeline's wiring, the daemon with its signals, the admin server, the demo."""
