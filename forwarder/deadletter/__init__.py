"""Dead letters: events that can't be delivered, in memory or in a database, and their replay."""
