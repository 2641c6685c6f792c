"""Two versions of the product read the same mutants, and their results are compared."""
