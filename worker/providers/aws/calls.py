"""One AWS call: bounded in time, with every failure as one of our typed errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from worker.providers.aws.clients import call_budget
from worker.providers.aws.errors import CallBudgetSpent, translate
from worker.providers.errors import ProviderError


@contextmanager
def aws_call(operation: str) -> Iterator[None]:
    """One AWS call: bounded in time, and everything botocore raises leaves as a ``ProviderError``."""
    try:
        with call_budget():
            yield
    except ProviderError:
        raise
    except (BotoCoreError, ClientError, CallBudgetSpent, ValueError) as exc:
        raise translate(exc, operation) from exc
    except Exception as exc:
        # botocore's ResponseParserError and the HTTP library's own errors have no common base.
        raise translate(exc, operation) from exc
