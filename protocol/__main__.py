"""`python -m protocol …` is `murmur …`, for starting our own programs whatever the PATH."""

from protocol.cli import main

main()
