"""The instance types the portal knows: facts with sources, kept as data in the tree."""
