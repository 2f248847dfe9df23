"""
A program that subscribes and holds one message until it is killed.

The argument is the URL of the subscription. The program prints a line once it has the message.
"""

from __future__ import annotations

import sys

from websockets.sync.client import connect


def main() -> None:
    """Receive a message, and hold it."""
    with connect(sys.argv[1], proxy=None, compression=None) as connection:
        while '"type":"message"' not in str(connection.recv()):
            pass
        sys.stdout.write("holding\n")
        sys.stdout.flush()
        connection.recv()


if __name__ == "__main__":
    main()
