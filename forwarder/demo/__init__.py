"""The product in action on one machine: the demo, the outage drill, and a local Kafka broker. Not
for production.
"""
