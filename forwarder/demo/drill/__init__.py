"""The outage drill: sandbox and forwarder as processes, put through an outage, a crash and a wrong key; see `drill.py`."""
