"""Every address of the portal."""

from __future__ import annotations

from allauth.account import views as account_views
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from portal import health

handler400 = "apps.core.pages.bad_request"
handler404 = "apps.core.pages.page_not_found"
handler500 = "apps.core.pages.server_error"

#: Only what a portal with closed sign-up and no mail of its own needs of allauth's addresses.
_accounts = [
    path("login/", account_views.login, name="account_login"),
    path("logout/", account_views.logout, name="account_logout"),
    path("inactive/", account_views.account_inactive, name="account_inactive"),
    path("signup/", account_views.signup, name="account_signup"),
    path("reauthenticate/", account_views.reauthenticate, name="account_reauthenticate"),
    path("password/change/", account_views.password_change, name="account_change_password"),
    path("password/set/", account_views.password_set, name="account_set_password"),
]

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="api-docs"),
    path("api/v1/", include("portal.api_urls")),
    path("admin/login/", RedirectView.as_view(pattern_name="account_login", query_string=True)),
    path("admin/", admin.site.urls),
    path("accounts/", include(_accounts)),
    path("", include("apps.connections.urls")),
    path("", include("apps.catalog.urls")),
    path("", include("apps.capacity.orphan_urls")),
    path("", include("apps.storage.urls")),
    path("", include("apps.capacity.urls")),
    path("", include("apps.clusters.urls")),
    path("", include("apps.health.urls")),
    path("", include("apps.checkpoints.urls")),
    path("", include("apps.jobs.urls")),
    path("", include("apps.costs.urls")),
    path("", include("apps.quotas.urls")),
    path("", include("apps.teams.urls")),
    path("", include("apps.audit.urls")),
    path("", include("apps.dashboard.urls")),
]
