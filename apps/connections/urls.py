"""Addresses of the pages of connections."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.connections import views

urlpatterns: list[URLPattern] = [
    path("connections", views.AccountList.as_view(), name="connections"),
    path("connections/new", views.AccountNew.as_view(), name="connection-new"),
    path("connections/<str:uid>", views.AccountPage.as_view(), name="connection"),
    path("connections/<str:uid>/edit", views.AccountEdit.as_view(), name="connection-edit"),
    path("connections/<str:uid>/remove", views.AccountRemove.as_view(), name="connection-remove"),
    path("connections/<str:uid>/pause", views.AccountPause.as_view(is_paused=True), name="connection-pause"),
    path(
        "connections/<str:uid>/allow-purchases",
        views.AccountPurchases.as_view(allowed=True),
        name="connection-allow-purchases",
    ),
    path(
        "connections/<str:uid>/stop-purchases",
        views.AccountPurchases.as_view(allowed=False),
        name="connection-stop-purchases",
    ),
    path("connections/<str:uid>/resume", views.AccountPause.as_view(is_paused=False), name="connection-resume"),
]
