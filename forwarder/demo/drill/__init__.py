"""The outage drill: sandbox and forwarder as processes, through an outage, a crash and
a wrong key.
"""
