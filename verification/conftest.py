"""Fixtures: visitors with both browsers, for the pictures."""

from tests.support.browser.fixtures import *  # noqa: F403  # fixtures are found by their names
