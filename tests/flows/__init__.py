"""The main story told end to end on whole stacks."""
