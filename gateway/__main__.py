"""``python -m gateway`` is ``nsq-gateway``."""

from gateway.cli import main

main()
