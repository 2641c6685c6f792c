"""For other people's tests: a pytest plugin with a sandbox and a forwarder, and the same without
pytest. Recipes: docs/how-to/testing.md.

Every run of pytest in an environment with forwarder imports `plugin`, so that it imports nothing
but pytest; its fixtures import the rest.
"""
