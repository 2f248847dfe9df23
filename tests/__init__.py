"""
Tests in tiers, each in folders as in gateway/; CONTRIBUTING.md describes them.

test_architecture.py checks the layout of gateway/ itself.
"""
