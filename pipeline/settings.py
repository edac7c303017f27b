"""The environment, read once, into one frozen object."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NewType, TypeAlias, get_args, get_origin

import attrs
import cattrs
from attrs import field, frozen

from pipeline.errors import UsageError
from pipeline.turn import OutputMode, Turn

if TYPE_CHECKING:
    from pipeline.chain import Pipeline

CutMode: TypeAlias = Literal["burst", "first"]
UnknownToolPolicy: TypeAlias = Literal["text", "call", "fail"]
Group: TypeAlias = Literal["pipeline", "source", "backend"]

LARGEST: Final = 1_000_000_000
Escaped = NewType("Escaped", str)
"""Text in which a variable may write a line break as \\n and a tab as \\t."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def _flag(  # noqa: PLR0913  # all but the first three are named
    env: str,
    default: Any,
    help: str,  # noqa: A002
    *,
    stage: str = "",
    group: Group = "pipeline",
    secret: bool = False,
) -> Any:
    """A setting: its variable, its default, what it does, and the part it belongs to."""
    metadata = {"env": env, "help": help, "stage": stage, "group": group}
    return field(default=default, repr=not secret, metadata=metadata)


@frozen
class Settings:
    """Everything an operator can choose. A field's metadata names its variable and explains it."""

    stop_after_tools: bool = _flag(
        "PROXY_STOP_AFTER_TOOLS",
        True,
        "end the generation once the model has made its calls",
        stage="cut",
    )
    stop_after_tools_mode: CutMode = _flag(
        "PROXY_STOP_AFTER_TOOLS_MODE",
        "burst",
        "end after the whole burst of calls, or after the first call",
        stage="cut",
    )
    stop_after_tools_grace_ms: int = _flag(
        "PROXY_STOP_AFTER_TOOLS_GRACE_MS",
        300,
        "how long a burst waits for its next call, restarted by each call",
        stage="cut",
    )
    suppress_tail_after_tools: bool = _flag(
        "PROXY_SUPPRESS_TAIL_AFTER_TOOLS",
        True,
        "drop the text after the last call; text between calls always stays",
        stage="cut",
    )
    tool_block_dedup: bool = _flag(
        "PROXY_TOOL_BLOCK_DEDUP",
        False,
        "forward calls of the same name and arguments once",
        stage="dedup",
    )
    tool_block_max: int = _flag(
        "PROXY_TOOL_BLOCK_MAX",
        0,
        "forward at most so many calls a turn; 0 means all of them",
        stage="cap",
    )
    unknown_tool_policy: UnknownToolPolicy = _flag(
        "PROXY_UNKNOWN_TOOL_POLICY",
        "text",
        "a call of an undeclared tool: text leaves it in the text it was written in, call forwards "
        "it, fail fails the turn, over a structured one too",
        stage="calls",
    )
    output_mode: OutputMode = _flag(
        "PROXY_OUTPUT_MODE",
        "auto",
        "auto: calls as JSON if the request has tools, else the text untouched; obsidian-xml also "
        "writes <use_tool> blocks into the text",
    )
    tool_block_delimiter: Escaped = _flag(
        "PROXY_TOOL_BLOCK_DELIMITER",
        "\n",
        r"what stands between two blocks in obsidian-xml; \n and \t are understood",
    )
    reasoning_content: bool = _flag(
        "PROXY_REASONING_CONTENT",
        True,
        "send the model's reasoning as reasoning_content",
    )
    dump_events: str = _flag(
        "CODEX_DUMP_SSE",
        "",
        "write every backend message and what it was read as to this file (1 means "
        "backend-events.jsonl): for learning what a new backend sends",
        group="source",
    )

    backend: str = _flag(
        "PROXY_BACKEND",
        "",
        "the address of a Responses API to use instead of an app-server, such as "
        "https://host/v1/responses",
        group="backend",
    )
    backend_api_key: str = _flag(
        "PROXY_BACKEND_API_KEY", "", "the key of that API", group="backend", secret=True
    )
    codex_app_server: str = _flag(
        "CODEX_APP_SERVER",
        "stdio",
        "where the app-server is: stdio starts one; ws://, wss:// and unix:// addresses, several "
        "with commas between, are a pool",
        group="backend",
    )
    codex_bin: str = _flag(
        "CODEX_BIN",
        "",
        "the Codex to start; else the one on the PATH, else the one that came with this project",
        group="backend",
    )
    codex_home: str = _flag(
        "CODEX_HOME",
        "",
        "the folder with the Codex login to use, such as ~/.codex; else an empty one is made",
        group="backend",
    )
    codex_token: str = _flag(
        "CODEX_APP_SERVER_TOKEN",
        "",
        "the capability token of a remote app-server",
        group="backend",
        secret=True,
    )
    codex_token_file: str = _flag(
        "CODEX_APP_SERVER_TOKEN_FILE",
        "",
        "a file that holds that token",
        group="backend",
    )
    codex_web_search: bool = _flag(
        "CODEX_WEB_SEARCH", False, "let Codex search the web by itself", group="backend"
    )
    codex_view_image: bool = _flag(
        "CODEX_VIEW_IMAGE", False, "let Codex look at image files by itself", group="backend"
    )
    codex_mcp_servers: bool = _flag(
        "CODEX_MCP_SERVERS",
        False,
        "let Codex use the MCP servers that its own configuration names",
        group="backend",
    )
    codex_first_event_timeout: float = _flag(
        "CODEX_FIRST_EVENT_TIMEOUT_S",
        120.0,
        "how long a turn may take to say its first word",
        group="backend",
    )
    codex_idle_timeout: float = _flag(
        "CODEX_IDLE_TIMEOUT_S", 300.0, "how long it may then be silent", group="backend"
    )
    codex_turn_timeout: float = _flag(
        "CODEX_TURN_TIMEOUT_S", 3600.0, "how long a turn may take in all", group="backend"
    )
    codex_hold_turns: bool = _flag(
        "CODEX_HOLD_TURNS",
        True,
        "keep a turn open while the client runs its tools, and continue it with their outputs",
        group="backend",
    )
    codex_hold_turns_max: int = _flag(
        "CODEX_HOLD_TURNS_MAX", 64, "how many turns are held at once", group="backend"
    )
    codex_hold_turns_time: float = _flag(
        "CODEX_HOLD_TURNS_S", 600.0, "how long a turn is held", group="backend"
    )
    codex_recycle_turns: int = _flag(
        "CODEX_RECYCLE_TURNS",
        2000,
        "replace the app-server after so many turns; 0 means never",
        group="backend",
    )
    codex_recycle_mb: int = _flag(
        "CODEX_RECYCLE_MB",
        1500,
        "replace the app-server when it has grown to so many megabytes; 0 means never",
        group="backend",
    )
    record_dir: str = _flag(
        "PIPELINE_RECORD_DIR",
        "",
        "write every turn there as a transcript that replay reads; it holds prompts and answers",
        group="backend",
    )
    record_redact: bool = _flag(
        "PIPELINE_RECORD_REDACT",
        False,
        "take keys and tokens out of these transcripts",
        group="backend",
    )

    def __attrs_post_init__(self) -> None:
        for attribute in attrs.fields(Settings):
            value = getattr(self, attribute.name)
            if isinstance(value, int | float) and not 0 <= value <= LARGEST:
                raise _bad(attribute, value)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Read the environment; keyword arguments, where not None, win over it."""
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for attribute in attrs.fields(cls):
            given = overrides.pop(attribute.name, None)
            if given is None:  # an empty variable is an unset one; an empty argument is meant
                given = environ.get(attribute.metadata["env"]) or None
            if given is not None:
                values[attribute.name] = _structure(attribute, given)
        if overrides:
            raise TypeError(f"no such setting: {', '.join(sorted(overrides))}")
        return cls(**values)  # type: ignore[arg-type]  # each value was structured just above

    def output_mode_for(self, turn: Turn) -> OutputMode:
        """The mode one request is answered in: its own wish, else the operator's."""
        mode = turn.output_mode or self.output_mode
        if mode == "auto" and turn.tools:
            return "openai-json"
        return mode

    @property
    def effective_cut_mode(self) -> str:
        """The mode as clients are told: `off` when nothing is cut."""
        return self.stop_after_tools_mode if self.stop_after_tools else "off"

    def pipeline(self) -> Pipeline:
        """The recipe these settings describe."""
        from pipeline.recipes import recipe  # noqa: PLC0415  # assembly imports settings

        return recipe(self)


# -- one value -----------------------------------------------------------------------------------


def choices(attribute: attrs.Attribute[Any]) -> str:
    """What a setting accepts, in words."""
    kind = _resolved(attribute)
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number from 0 to a billion"
    if kind is float:
        return "a number from 0 to a billion"
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    return "any text"


def _resolved(attribute: attrs.Attribute[Any]) -> Any:
    return attrs.fields_dict(attrs.resolve_types(Settings))[attribute.name].type


def _bad(attribute: attrs.Attribute[Any], value: object) -> UsageError:
    shown = value if isinstance(value, str) else repr(value)
    return UsageError(
        f"{attribute.metadata['env']}={shown} is not possible; it takes {choices(attribute)}"
    )


def _structure(attribute: attrs.Attribute[Any], value: object) -> object:
    kind = _resolved(attribute)
    try:
        return _converter.structure(value, kind)
    except (ValueError, TypeError) as error:
        raise _bad(attribute, value) from error


def _to_bool(value: object, _: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError(value) from None


def _is_escaped(kind: object) -> bool:
    return kind is Escaped


def _to_escaped(value: object, _: object) -> str:
    return re.sub(r"\\([ntr\\])", lambda found: _ESCAPES[found[1]], str(value))


def _is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _to_choice(value: object, kind: Any) -> object:
    wanted = str(value).strip().lower()
    if wanted not in get_args(kind):
        raise ValueError(value)
    return wanted


_converter: Final = cattrs.Converter()
_converter.register_structure_hook(bool, _to_bool)
_converter.register_structure_hook_func(_is_escaped, _to_escaped)
_converter.register_structure_hook_func(_is_choice, _to_choice)
