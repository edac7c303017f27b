"""What every test begins with."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import structlog
from hypothesis import HealthCheck, settings


@pytest.fixture(autouse=True)
def _log_as_if_new() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """A test that runs a command sets up its log; the next test finds nothing of it."""
    yield
    structlog.reset_defaults()


# How long an example takes says more about the machine than about the code.
settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")
