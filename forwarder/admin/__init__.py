"""What operators see of a running daemon: health, metrics, the status document
and page. It only reads.
"""
