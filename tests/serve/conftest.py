"""What the tests of the endpoint share."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.serve.scripted import Served, served


@pytest.fixture
async def shared() -> AsyncGenerator[Served]:
    """A server as it comes, whose every turn says hello."""
    async with served() as here:
        yield here
