"""Foreign records become events by rules that are compiled once: Kafka, logs and imports share them."""
