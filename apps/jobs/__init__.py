"""Jobs, their attempts, templates, logs and progress."""
