"""HTTP connections to an upstream: batches, key checks and calls that are passed through go over
them (decision 31).

`connections.py` keeps those to one address and opens new ones, through a proxy where there is one
(`proxies.py`); `connection.py` is one of them: a request at a time, as bytes.
"""
