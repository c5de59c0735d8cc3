"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("jaxafl")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "unknown"
