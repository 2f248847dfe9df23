"""Subscriptions behind WebSockets."""
