"""Sources: where events come in. A source turns what it receives into `core.ports.Incoming`,
offers it to the intake, and tells the sender what became of it. It never looks inside a body.
"""
