"""Checkpoints that jobs write: complete, in progress or torn, each with the reason."""
