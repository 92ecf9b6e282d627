"""Template filters and tags of the whole house."""
