"""Which events make the next upstream request: whose turn it is, and how much of what waits goes together."""
