"""Where events go that can't be delivered: kept with their reason and their original bytes."""
