"""The bounds of numeric settings: what is inside passes, and what is outside is refused."""

from __future__ import annotations

from math import inf, isfinite, nan
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.assembly import Settings
from pipeline.cli.main import main
from pipeline.cli.settings import as_env, as_markdown
from pipeline.errors import UsageError

HOUR, DAY, WEEK = 3_600, 86_400, 604_800
WHOLE = {
    "PROXY_STOP_AFTER_TOOLS_GRACE_MS": (0, 3_600_000),
    "PROXY_TOOL_BLOCK_MAX": (0, 1_024),
    "CODEX_HOLD_TURNS_MAX": (0, 10_000),
    "CODEX_RECYCLE_TURNS": (0, 1_000_000),
    "CODEX_RECYCLE_MB": (0, 1_000_000),
    "PROXY_PORT": (0, 65_535),
    "PROXY_WORKERS": (1, 64),
    "PROXY_REQUESTS_PER_MINUTE": (0, 1_000_000),
    "PROXY_CONCURRENCY": (1, 100_000),
    "PROXY_CONCURRENCY_PER_KEY": (1, 100_000),
    "PROXY_QUEUE_SIZE": (0, 100_000),
}
FRACTIONS = {
    "CODEX_FIRST_EVENT_TIMEOUT_S": (1, DAY),
    "CODEX_IDLE_TIMEOUT_S": (1, DAY),
    "CODEX_TURN_TIMEOUT_S": (1, WEEK),
    "CODEX_HOLD_TURNS_S": (1, DAY),
    "PROXY_QUEUE_TIMEOUT_S": (0, DAY),
    "PROXY_BODY_LIMIT_MB": (0.001, 1_024),
    "PROXY_READ_TIMEOUT_S": (0.01, HOUR),
    "PROXY_WRITE_TIMEOUT_S": (0.01, HOUR),
    "PROXY_KEEP_ALIVE_S": (0.01, DAY),
    "PROXY_PRIME_WINDOW_S": (0, HOUR),
    "PROXY_PING_INTERVAL_S": (0.01, HOUR),
    "PROXY_STORE_MB": (0, 1_000_000),
    "PROXY_STORE_DAYS": (0, 3_650),
    "PROXY_SHUTDOWN_GRACE_S": (0, DAY),
}
BOUNDS: dict[str, tuple[float, float]] = {**WHOLE, **FRACTIONS}
FIELDS: dict[str, attrs.Attribute[Any]] = {
    field.metadata["env"]: field for field in attrs.fields(attrs.resolve_types(Settings))
}
NUMBERS = {name: field for name, field in FIELDS.items() if field.type in (int, float)}
NO_LIMIT = "without a limit, a client that stops reading would keep its turn and connection"
WITH_A_HINT = {"PROXY_WORKERS", "PROXY_WRITE_TIMEOUT_S"}


def just_outside(variable: str) -> tuple[float, float]:
    least, most = BOUNDS[variable]
    step = 1 if variable in WHOLE else 0.0005
    return round(least - step, 4), most + step


def refusal(variable: str, value: object) -> str:
    with pytest.raises(UsageError) as raised:
        Settings.from_env({variable: str(value)})
    return str(raised.value)


# -- tables --------------------------------------------------------------------------------------


def test_the_tables_name_every_numeric_setting() -> None:
    assert NUMBERS.keys() == BOUNDS.keys()
    assert {name for name, field in NUMBERS.items() if field.type is int} == WHOLE.keys()


@pytest.mark.parametrize("variable", BOUNDS)
def test_the_least_and_the_most_are_possible(variable: str) -> None:
    for value in BOUNDS[variable]:
        settings = Settings.from_env({variable: str(value)})
        assert getattr(settings, FIELDS[variable].name) == value


@pytest.mark.parametrize("variable", BOUNDS)
def test_less_and_more_are_refused_with_the_bounds_and_what_was_given(variable: str) -> None:
    least, most = BOUNDS[variable]
    kind = "a whole number" if variable in WHOLE else "a number"
    wanted = f"{least} to {most}" if variable in WITH_A_HINT else f"{kind} from {least} to {most}"
    for value in just_outside(variable):
        told = refusal(variable, value)
        assert told.startswith(f"{variable} must be {wanted} (got {value})")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PROXY_PORT", "70000", "PROXY_PORT must be a whole number from 0 to 65535 (got 70000)"),
        ("PROXY_PORT", "http", "PROXY_PORT must be a whole number from 0 to 65535 (got http)"),
        ("PROXY_PORT", "80.5", "PROXY_PORT must be a whole number from 0 to 65535 (got 80.5)"),
        (
            "PROXY_WORKERS",
            "0",
            "PROXY_WORKERS must be 1 to 64 (got 0); more workers than CPU cores do not help.",
        ),
        ("PROXY_WORKERS", "two", "PROXY_WORKERS must be a whole number from 1 to 64 (got two)"),
        (
            "PROXY_WRITE_TIMEOUT_S",
            "0",
            f"PROXY_WRITE_TIMEOUT_S must be 0.01 to 3600 (got 0); {NO_LIMIT}.",
        ),
        (
            "CODEX_IDLE_TIMEOUT_S",
            "inf",
            "CODEX_IDLE_TIMEOUT_S must be a number from 1 to 86400 (got inf)",
        ),
        (
            "CODEX_IDLE_TIMEOUT_S",
            "nan",
            "CODEX_IDLE_TIMEOUT_S must be a number from 1 to 86400 (got nan)",
        ),
        (
            "PROXY_STORE_DAYS",
            "-0.5",
            "PROXY_STORE_DAYS must be a number from 0 to 3650 (got -0.5)",
        ),
    ],
)
def test_a_refusal_reads(variable: str, value: str, message: str) -> None:
    assert refusal(variable, value) == message


def test_a_refusal_stays_short_and_on_one_line() -> None:
    assert refusal("PROXY_TOOL_BLOCK_MAX", "9" * 400).endswith(f"(got {'9' * 80})")
    assert refusal("PROXY_PORT", "80\n\x1b[31m").endswith("(got 80??[31m)")


def test_a_command_refuses_what_its_flag_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    wanted = "pipeline: PROXY_PORT must be a whole number from 0 to 65535 (got 70000)\n"
    assert capsys.readouterr().err == wanted


def test_code_is_held_to_the_same_bounds_as_variables() -> None:
    with pytest.raises(UsageError, match="PROXY_WORKERS must be 1 to 64"):
        Settings(workers=0)
    with pytest.raises(UsageError, match=r"PROXY_PORT .* \(got 70000\)"):
        attrs.evolve(Settings(), port=70_000)


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", NUMBERS)
def test_a_numeric_setting_has_finite_bounds_around_its_default(variable: str) -> None:
    field = NUMBERS[variable]
    least, most = field.metadata["bounds"]
    assert isfinite(least)
    assert isfinite(most)
    assert least < most
    assert least <= field.default <= most
    assert type(field.default) is field.type


def test_only_numbers_have_bounds() -> None:
    others = [field for name, field in FIELDS.items() if name not in NUMBERS]
    assert len(others) > 20
    assert not [field.name for field in others if field.metadata["bounds"]]


@pytest.mark.parametrize("variable", BOUNDS)
def test_what_is_read_about_a_setting_names_its_bounds(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    least, most = BOUNDS[variable]
    kind = "a whole number" if variable in WHOLE else "a number"
    wanted = f"{kind} from {least} to {most}"
    (help_line,) = [x for x in capsys.readouterr().out.splitlines() if f"[{variable}]" in x]
    (row,) = [line for line in as_markdown().splitlines() if f"`{variable}`" in line]
    (entry,) = [text for text in as_env().split("\n\n") if f"#{variable}=" in text]
    assert f"({wanted}; default: " in help_line
    assert f"| {wanted} |" in row
    assert f"({wanted})" in entry.replace("\n#", "")


numbers = st.floats() | st.integers(-10, 10_000_000) | st.sampled_from([nan, inf, -inf])


@given(variable=st.sampled_from(sorted(BOUNDS)), value=numbers)
def test_a_number_is_taken_exactly_if_it_is_within_the_bounds(variable: str, value: float) -> None:
    least, most = BOUNDS[variable]
    name = FIELDS[variable].name
    chosen: dict[str, Any] = {name: value}
    if least <= value <= most:
        assert getattr(Settings(**chosen), name) == value
    else:
        with pytest.raises(UsageError, match=f"^{variable} must be "):
            Settings(**chosen)
