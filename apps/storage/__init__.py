"""Shared file systems of the accounts, their ties to S3 and their exports."""
