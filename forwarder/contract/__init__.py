"""The service's interface as data: endpoints, resources, what they accept, errors, gaps. All that
speaks it reads it here.

What is `../docs/maintainers/interface.md` for a person is this package for a program; a test holds
the two against each other.
"""
