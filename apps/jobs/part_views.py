"""The parts of a heterogeneous job: a table."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from apps.jobs.array_views import colour_of
from apps.jobs.detail_views import JobPage
from apps.jobs.part_selectors import parts_shown


class JobParts(JobPage):
    """The tab of the parts."""

    tab = "parts"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context: dict[str, Any] = self.frame(job)
        context["rows"] = [(part, colour_of(part.state)) for part in parts_shown(job)]
        return self.answer(request, "jobs/job_het.html", context)
