"""Tests of what is written for, and read from, a Kubernetes cluster."""
