"""Management commands of the whole house."""
