"""Whatever is sent, the answer is JSON and the mistake is the client's."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.scripted import CHAT, Served, body, served, tools
from tests.serve.wire import Answer, post, request, wire

GOOD = msgspec.json.encode(body())
LONG_KEY = "k" * 50_000


def is_error(answer: Answer) -> bool:
    error = answer.json()["error"]
    return set(error) == {"message", "type", "code", "param"} and len(error["message"]) < 5_000


def host(name: bytes) -> bytes:
    return b"GET /v1/models HTTP/1.1\r\nHost: %b\r\n\r\n" % name


def chat(*headers: str, data: bytes = b"{}") -> bytes:
    return request("POST", CHAT, *headers) + data


BODIES: dict[str, tuple[Any, str | None]] = {
    "nothing": (b"", None),
    "a word": (b"hello", None),
    "a number": (b"1", None),
    "null": (b"null", None),
    "an array": (b"[]", None),
    "an empty object": (b"{}", "model"),
    "a torn object": (GOOD[:-1], None),
    "two objects": (GOOD + GOOD, None),
    "a form": (b"model=gpt-5&messages=hi", None),
    "NaN": (b'{"n":NaN}', None),
    "half a pair": (b'{"model":"\\ud800"}', None),
    "a huge number": (b'{"seed":%b}' % (b"9" * 5_000), None),
    "not UTF-8": (b'{"model":"\xff"}', None),
    "UTF-16": (GOOD.decode().encode("utf-16"), None),
    "depth": (b"[" * 50_000, None),
    "no messages": ({"model": "m"}, "messages"),
    "empty messages": ({"model": "m", "messages": []}, "messages"),
    "messages as text": ({"model": "m", "messages": "hi"}, "messages"),
    "a null message": ({"model": "m", "messages": [None]}, "messages[0]"),
    "an unknown role": ({"model": "m", "messages": [{"role": "x"}]}, "messages[0].role"),
    "no content": ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content"),
    "a model of no name": (body(model=""), "model"),
    "a model that is a number": (body(model=1), "model"),
    "nine choices": (body(n=9), "n"),
    "no choice": (body(n=0), "n"),
    "a choice and a half": (body(n=1.5), "n"),
    "stream as a word": (body(stream="yes"), "stream"),
    "five stops": (body(stop=list("abcde")), "stop"),
    "tools as an object": (body(tools={}), "tools"),
    "a tool without a function": (body(tools=[{"type": "function"}]), "tools[0].function"),
    "a tool without a name": (
        body(tools=[{"type": "function", "function": {}}]),
        "tools[0].function.name",
    ),
    "the same tool twice": (body(tools=tools("a", "a")), "tools[1].function.name"),
    "a choice of no tool": (body(tool_choice="required"), "tool_choice"),
    "an orphan": (
        body(messages=[{"role": "tool", "tool_call_id": "call_x", "content": "?"}]),
        "messages[0].tool_call_id",
    ),
    "an unknown effort": (body(reasoning_effort="huge"), "reasoning_effort"),
    "an unknown format": (body(response_format={"type": "xml"}), "response_format.type"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_wrong_body_is_a_400_that_names_the_field(name: str, shared: Served) -> None:
    content, param = BODIES[name]
    async with wire(shared) as connection:
        await connection.write(post(content))
        answer = await connection.read()
        assert answer.status == 400
        assert is_error(answer)
        assert answer.json()["error"]["param"] == param
        assert answer.headers["x-request-id"].startswith("req_")
        await connection.write(post())  # and the connection is as good as before
        assert (await connection.read()).status == 200


REQUESTS: dict[str, tuple[bytes, int]] = {
    "a path of percent signs": (request("GET", "/v1/%zz%f0%ff%"), 404),
    "a path with a NUL": (request("GET", "/v1/%00"), 404),
    "a model that is no UTF-8": (request("GET", "/v1/models/%ff%fe"), 404),
    "a path out of the root": (request("GET", "/v1/../../etc/passwd"), 404),
    "a huge path": (request("GET", "/v1/" + "a" * 50_000), 404),
    "a star": (request("GET", "*"), 404),
    "a tunnel": (request("CONNECT", "localhost:80"), 404),
    "an unknown method": (request("BREW", CHAT), 405),
    "a trace": (request("TRACE", "/v1/models"), 405),
    "a host of a long label": (host(b"a" * 100 + b".org"), 403),
    "a host of dots": (host(b".."), 403),
    "no host's name": (host(b""), 403),
    "half an address": (host(b"[::1"), 403),
    "a host that is no ASCII": (host(b"\xff\xfe"), 403),
    "a host with a user": (host(b"me@localhost"), 403),
    "half an origin": (request("GET", "/v1/models", "Origin: http://[::1"), 403),
    "an origin that is no ASCII": (request("GET", "/v1/models", "Origin: \xff"), 403),
    "no length": (chat(data=b""), 400),
    "a length of many": (chat("Content-Length: 999999999999999999"), 413),
    "an unknown encoding": (post(body(), "Content-Encoding: \xff"), 415),
    "two encodings": (post(body(), "Content-Encoding: gzip, zstd"), 415),
    "gzip that is none": (post(body(), "Content-Encoding: gzip"), 400),
    "an unknown output mode": (post(body(), "x-proxy-output-mode: pdf\xff"), 400),
    "a chunk without a size": (chat("Transfer-Encoding: chunked", data=b"zz\r\n{}\r\n"), 400),
    "a broken chunk": (chat("Transfer-Encoding: chunked", data=b"2\r\n{}}}\r\n"), 400),
    "a length below nothing": (chat("Content-Length: -1"), 400),
    "two lengths": (chat("Content-Length: 2", "Content-Length: 3", data=b"{}}"), 400),
    "an unknown transfer-encoding": (chat("Transfer-Encoding: gzip"), 501),
    "a header with a NUL": (request("GET", "/v1/models", "X-A: a\0b"), 400),
    "a header without a colon": (request("GET", "/v1/models", "nonsense"), 400),
    "a huge head": (b"GET / HTTP/1.1\r\nX-A: " + b"a" * 200_000, 431),
    "no host at all": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "two hosts": (request("GET", "/v1/models", "Host: localhost"), 400),
    "no path": (b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a greeting": (b"hello\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a WebSocket": (
        request(
            "GET",
            "/v1/chat/completions",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        426,
    ),
    "half a WebSocket": (
        request("GET", "/v1/models", "Connection: Upgrade", "Upgrade: websocket"),
        426,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_wrong_request_is_answered_in_json(name: str, shared: Served) -> None:
    data, status = REQUESTS[name]
    async with wire(shared) as connection:
        await connection.write(data)
        answer = await connection.read()
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert is_error(answer)
    assert not shared.lines("a request broke")
    assert not shared.lines("Error in ASGI Framework")


STRANGE: dict[str, bytes] = {
    "HTTP/1.0": post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a body in chunks": chat(
        "Transfer-Encoding: chunked", data=b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    ),
    "a body that waits": post(body(), "Expect: 100-continue"),
    "a wrong content-type": post(body(), "Content-Type: image/png"),
    "a broken content-type": post(body(), "Content-Type: multipart/form-data; boundary=\xff"),
    "a length twice": chat(f"Content-Length: {len(GOOD)}, {len(GOOD)}", data=GOOD),
    "gzip": post(gzip.compress(GOOD), "Content-Encoding: gzip"),
    "a body on a GET": request("GET", "/v1/models", "Content-Length: 5") + b"hello",
    "a query of junk": request("GET", "/v1/models?%ff=%zz&&=&a[]=1"),
    "a slash at the end": request("GET", "/v1/models/"),
    "a whole address": request("GET", "http://localhost/v1/models"),
    "strange cookies": request("GET", "/v1/models", "Cookie: \xff=\xfe; session=a;;;="),
    "a huge header": request("GET", "/v1/models", "X-A: " + "a" * 60_000),
    "names with line breaks": post({**body(), "a\r\nX-Evil: 1": 1, "ключ🌍": 2, LONG_KEY: 3}),
    "many names": post({**body(), **{f"name-{number}": 1 for number in range(5_000)}}),
    "nulls": post(body(tools=None, stop=None, n=None, stream=None, temperature=None)),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_what_is_strange_but_right_is_served(name: str, shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(STRANGE[name])
        answer = await connection.read()
    assert answer.status == 200
    assert "x-evil" not in answer.headers
    assert sum(map(len, answer.headers.values())) < 12_000
    assert answer.json()["object"] in ("chat.completion", "list")


async def test_a_strict_refusal_is_no_longer_than_it_must_be(shared: Served) -> None:
    async with wire(shared) as connection:
        many = {f"{number}{LONG_KEY}": 1 for number in range(100)}
        await connection.write(post({**body(), **many}, "x-proxy-strict: 1"))
        answer = await connection.read()
    assert (answer.status, is_error(answer)) == (400, True)


_NAMES = st.sampled_from(
    [
        *("model", "messages", "stream", "stream_options", "n", "stop", "tools", "tool_choice"),
        *("functions", "function_call", "parallel_tool_calls", "response_format", "reasoning"),
        *("reasoning_effort", "role", "content", "type", "text", "name", "function", "id"),
        *("tool_calls", "tool_call_id", "arguments", "parameters", "include_usage", "schema"),
        *("image_url", "url", "file", "file_data", "json_schema", "temperature"),
    ]
)
_WORDS = st.sampled_from(["user", "assistant", "tool", "function", "text", "auto", "m", ""])
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(), inner),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_NAMES, _JSON, max_size=6)


@settings(max_examples=30)
@given(st.lists(st.tuples(_OBJECTS, st.booleans()), min_size=1, max_size=6))
def test_any_json_gets_an_answer_or_a_json_error(bodies: list[tuple[dict[str, Any], bool]]) -> None:
    async def main() -> None:
        async with served() as here, wire(here) as connection:
            for fields, usable in bodies:
                whole = {**body(), **fields} if usable else fields
                await connection.write(post(msgspec.json.encode(whole)))
                answer = await connection.read()
                if answer.status == 200:
                    assert answer.body.startswith((b"data: ", b'{"id":"chatcmpl-'))
                else:
                    assert (answer.status, is_error(answer)) == (400, True)

    trio.run(main)
