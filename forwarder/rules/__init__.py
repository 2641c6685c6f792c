"""Rules: which events are dropped, sampled or changed between stamping and the buffer.
`matching.py` serves routes, too.
"""
