"""The management API: authorization, validation, and a module for each group of resources."""
