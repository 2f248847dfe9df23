"""What several tests share: no test is here, and nothing of it is imported by the gateway."""
