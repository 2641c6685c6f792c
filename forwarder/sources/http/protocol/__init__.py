"""What the connection and the pass-through share: routes, answers, the queue of answers, limits,
and a connection's lifecycle.
"""
