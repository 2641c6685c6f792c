"""The management half of the sandbox: organizations with their domains, invites, members and projects, batch exports, dashboards.

`dispatch` makes routes of the contract's table; a module for each resource says what happens; `tables` is what is kept, in the same file as
the events.
"""
