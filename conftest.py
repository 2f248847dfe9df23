"""Load what all tests share; pytest accepts `pytest_plugins` at the root only."""

pytest_plugins = ["tests.support.plugin", "tests.support.gateways.fixtures"]
