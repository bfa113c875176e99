"""The hub as its users see it: the client (client.py) and the wire format (wire.py), and
listings followed by number (listing.py). The hub itself: trainer/hub."""
