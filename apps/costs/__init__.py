"""The ledger: accounts and postings in USD, GPU-hours and concurrent GPUs. It is told, never looks up."""
