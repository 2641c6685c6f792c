"""What the sandbox serves over HTTP beside the management API: the service's endpoints, queries,
live updates, the page.
"""
