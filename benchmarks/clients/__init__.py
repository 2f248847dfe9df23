"""One program for each client of NSQ: the least it can do, and one line of JSON at the end."""
