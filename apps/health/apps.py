"""Django's registration of the health app."""

from django.apps import AppConfig


class HealthConfig(AppConfig):
    name = "apps.health"
    label = "health"
