"""Kubernetes: workloads written as objects, manifests of people, Kueue's objects, and what the cluster says in words."""
