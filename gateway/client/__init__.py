"""The asyncio NSQ client: publish to brokers, subscribe on brokers."""
