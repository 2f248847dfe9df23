"""Helpers that several test files share; the gateway imports nothing from here."""
