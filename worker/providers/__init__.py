"""Doors to outside systems: frozen values in and out, typed errors, no Django and no Celery."""
