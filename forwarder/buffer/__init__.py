"""Where events wait for their delivery. Every buffer obeys `core.ports.Buffer`, and one contract suite tests them all."""
