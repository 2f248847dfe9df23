"""``python -m gateway`` is ``nsq-gateway``."""

from gateway.cli.main import main

main()
