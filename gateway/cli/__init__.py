"""The commands of `nsq-gateway`."""
