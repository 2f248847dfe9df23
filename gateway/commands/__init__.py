"""What the command line runs beside the servers: publishing and subscribing from a shell."""
