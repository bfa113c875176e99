"""Workers that cheat, for the demo and the tests. Never part of the product.

Each is the real worker with one dishonest part put in.
"""
