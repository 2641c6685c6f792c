"""From requests, and a source's records, to chunks in the buffer: validated event by event, stamped, assigned to lanes, all or none."""
