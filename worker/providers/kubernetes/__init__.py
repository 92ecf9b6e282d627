"""Kubernetes: workloads as objects, manifests of people, Kueue's objects, and what a cluster says in words."""
