"""Rewrite the generated parts of the pages in this folder, and .env.example: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pipeline.cli.settings import as_env, as_markdown

DOCS: Final = Path(__file__).parent
_PART: Final = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def generated(docs: Path = DOCS) -> dict[Path, str]:
    """The text that every page, and .env.example, should have.

    Benchmarks take minutes, so their tables come from the files that `make bench` writes.
    """
    parts = {"settings": as_markdown() + "\n"}
    for file in (docs / "bench").glob("*.txt"):
        parts[file.stem] = f"```\n{file.read_text('utf-8')}```\n"
    pages = {
        page: _PART.sub(
            lambda found: found[1] + parts[found[2]] + found[3], page.read_text("utf-8")
        )
        for page in sorted(docs.glob("*.md"))
    }
    return pages | {docs.parent / ".env.example": as_env() + "\n"}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, "utf-8")
