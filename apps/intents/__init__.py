"""Intent: "worker, look at this", written in the same commit as the change it is about."""
