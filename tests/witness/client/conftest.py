"""Fixtures with scripted brokers."""

from tests.support.brokers.fixtures import *  # noqa: F403  # fixtures are found by their names
