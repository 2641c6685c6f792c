"""What is on the wire: encodings, shapes and fields of requests, and the bodies sent upstream.
Events stay raw JSON bytes.
"""
