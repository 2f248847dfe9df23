"""One minimal program per NSQ client; each prints one line of JSON at the end."""
