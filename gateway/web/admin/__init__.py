"""Administration and statistics of all nsqds, in nsqd's formats."""
