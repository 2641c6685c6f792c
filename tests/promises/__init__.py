"""What the documents promise, at every entrance, as a table that runs.

`promises.py` has the rows, `entrances.py` the columns, `world.py` the processes behind them,
`table.py` the cells (docs/maintainers/promises.md).
"""
