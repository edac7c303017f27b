"""The settings that make a Codex use the scripted model instead of a login."""

from __future__ import annotations


def scripted_provider(base_url: str, *, stream_retries: int = 0) -> dict[str, str]:
    """Configuration overrides for a model at this URL, without a key."""
    provider = "model_providers.scripted"
    return {
        "model_provider": '"scripted"',
        f"{provider}.name": '"scripted"',
        f"{provider}.base_url": f'"{base_url}"',
        f"{provider}.wire_api": '"responses"',
        f"{provider}.request_max_retries": "0",
        f"{provider}.stream_max_retries": str(stream_retries),
    }
