"""Cloud accounts and other credentials by reference, with a pause switch."""
