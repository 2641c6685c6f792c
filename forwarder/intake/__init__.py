"""From decoded requests to chunks in the buffer: validated event by event, stamped, assigned to lanes, taken whole or not at all."""
