"""Tests of the tooling: set-up, supervisor, contracts, deployment files and the tree itself."""
