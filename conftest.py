"""Load the settings of all tests; pytest accepts `pytest_plugins` at the root only."""

pytest_plugins = ["tests.support.plugin"]
