"""The vocabulary that every layer shares: events, batches, outcomes, errors, ports, time. It
imports nothing of forwarder's.
"""
