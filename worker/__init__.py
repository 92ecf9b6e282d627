"""Everything that leaves the building: Celery tasks, the engine, reconcilers, collectors and providers."""
