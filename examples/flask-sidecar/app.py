"""A shop of one page: each order is an event. The SDK sends it to the forwarder beside it, so a
request never waits for the service.
"""

import os

from flask import Flask
from posthog import Posthog

app = Flask(__name__)
analytics = Posthog(
    os.environ.get("ANALYTICS_KEY", "phc_exampleOfFlask0000000001"),
    host=os.environ.get("ANALYTICS_HOST", "http://127.0.0.1:8320"),
)


@app.post("/orders/<customer>")
def order(customer: str) -> str:
    """Take an order."""
    analytics.capture("order placed", distinct_id=customer, properties={"total": 49})
    return f"Thank you, {customer}.\n"
