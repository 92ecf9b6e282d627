"""Limits of a team: how many GPUs at once. Who may exceed them comes from approvals."""
