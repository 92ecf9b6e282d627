"""Finds the few files of the front-end packages that pages load, so that nothing else of node_modules is served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.utils import matches_patterns
from django.core.checks import CheckMessage, Warning
from django.core.files.storage import FileSystemStorage


class VendorFinder(BaseFinder):
    """``VENDOR_FILES`` maps a folder under /static/ to a package's folder and the names of the files to take."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """A warning for each file that npm has not brought."""
        return [
            Warning(f"{path} is missing", hint="make setup installs the front-end packages", id="portal.W001")
            for path in self._files().values()
            if not path.is_file()
        ]

    def _files(self) -> dict[str, Path]:
        return {
            f"{prefix}/{name}": folder / name
            for prefix, (folder, names) in settings.VENDOR_FILES.items()
            for name in names
        }

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """The file behind an address; an empty list when it is none of ours."""
        if kwargs.get("all"):
            find_all = True
        found = self._files().get(path)
        if found is None or not found.is_file():
            return []
        return [str(found)] if find_all else str(found)

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        """Every file, with the storage that opens it."""
        patterns = [*(ignore_patterns or ())]
        for prefix, (folder, names) in settings.VENDOR_FILES.items():
            storage = FileSystemStorage(location=folder)
            storage.prefix = prefix  # type: ignore[attr-defined]
            for name in names:
                if (folder / name).is_file() and not matches_patterns(name, patterns):
                    yield name, storage
