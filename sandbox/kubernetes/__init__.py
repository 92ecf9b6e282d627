"""A pretend Kubernetes API server with its CRDs, faults and permissions, for the official client to talk to."""
