"""`python -m protocol …` is `murmur …`, for starting our own programs whatever the PATH."""

from protocol.shell.cli import main

main()
