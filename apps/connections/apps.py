"""Django's registration of the connections app."""

from django.apps import AppConfig


class ConnectionsConfig(AppConfig):
    name = "apps.connections"
    label = "connections"
