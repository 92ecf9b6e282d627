"""Django's registration of the intents app."""

from django.apps import AppConfig


class IntentsConfig(AppConfig):
    name = "apps.intents"
    label = "intents"
