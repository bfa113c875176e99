"""The hub as its users see it: the client (client.py) and the wire format (wire.py),
files fetched from where the hub says that they lie (elsewhere.py), listings followed by number (listing.py), what the trainer needs (need.py), and challenges of seats (challenges.py). The hub itself: trainer/hub."""
