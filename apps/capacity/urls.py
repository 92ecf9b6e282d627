"""Addresses of the pages of reserved capacity."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.capacity import reservation_views, views

_change = reservation_views.ReservationChange
_decide = views.PurchaseDecide

urlpatterns: list[URLPattern] = [
    path("capacity/search", views.SearchNew.as_view(), name="offering-search-new"),
    path("capacity/searches/<str:uid>", views.SearchPage.as_view(), name="offering-search"),
    path("capacity/odcr/new", views.OdcrNew.as_view(), name="odcr-new"),
    path("capacity/purchases", views.PurchaseList.as_view(), name="purchases"),
    path("capacity/purchases/<str:uid>", views.PurchasePage.as_view(), name="purchase"),
    path("capacity/purchases/<str:uid>/approve", _decide.as_view(verb="approve"), name="purchase-approve"),
    path("capacity/purchases/<str:uid>/reject", _decide.as_view(verb="reject"), name="purchase-reject"),
    path("capacity/purchases/<str:uid>/withdraw", _decide.as_view(verb="withdraw"), name="purchase-withdraw"),
    path("capacity/purchases/<str:uid>/resolve", views.PurchaseResolve.as_view(), name="purchase-resolve"),
    path("capacity/reservations/<str:uid>", reservation_views.ReservationPage.as_view(), name="reservation"),
    path("capacity/reservations/<str:uid>/cancel", _change.as_view(verb="cancel"), name="reservation-cancel"),
    path("capacity/reservations/<str:uid>/assign", _change.as_view(verb="assign"), name="reservation-assign"),
    path("capacity/reservations/<str:uid>/price", _change.as_view(verb="price"), name="reservation-price"),
    path("capacity/reservations/<str:uid>/extend", _change.as_view(verb="extend"), name="reservation-extend"),
]
