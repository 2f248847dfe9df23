"""Several processes that share one public address: `nsq-gateway serve --workers N`."""
