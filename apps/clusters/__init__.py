"""Clusters, the fleets of machines in them, and their nodes."""
