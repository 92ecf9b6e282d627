"""One file a kind of workload, each a function from a WorkloadSpec to its objects."""
