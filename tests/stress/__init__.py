"""Many processes at once, some of them killed."""
