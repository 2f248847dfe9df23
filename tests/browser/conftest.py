"""Fixtures: visitors with both browsers."""

from tests.support.browser.fixtures import *  # noqa: F403  # fixtures are found by their names
