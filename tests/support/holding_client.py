"""
A program that subscribes, takes one message and holds it until it is killed.

Its one argument is the address of the subscription; it prints a line once it holds the message.
"""

from __future__ import annotations

import sys

from websockets.sync.client import connect


def main() -> None:
    """Hold the first message that comes."""
    with connect(sys.argv[1], proxy=None, compression=None) as connection:
        while '"type":"message"' not in str(connection.recv()):
            pass
        sys.stdout.write("holding\n")
        sys.stdout.flush()
        connection.recv()


if __name__ == "__main__":
    main()
