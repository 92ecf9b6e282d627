"""People, teams, roles, service accounts and API tokens: who may do what, everywhere."""
