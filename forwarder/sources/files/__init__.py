"""From what the user names to blocks of records: files, folders, patterns, object stores, standard
input, and whatever is packed in them.

Everything is streamed: memory is bounded by the options, not by the data. Damage ends one file,
never the source, and never before what could be read of it was given.
"""
