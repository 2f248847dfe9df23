"""Tests, in folders as in gateway/; test_architecture.py holds the layout."""
