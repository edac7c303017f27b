"""HTTP/1.1: hypercorn's protocol and quart-trio's requests, on connections of our own.

Only this folder uses names of hypercorn 0.18, quart-trio 0.12 and h11 that are private or not
documented. All are listed here; a test compares the list with the code and with the installed
versions. Percentages are what the library's own way costs more: CPU of a server with a trivial
app, 30 interleaved runs, medians. The app takes 370 µs for a JSON response and 31 µs for a chunk of
a paced stream; a held stream takes 24 KiB, an idle connection 14 KiB.

`tcp` and `keep_alive` stand for hypercorn's TCPServer, of which little was left:
    a write is tried before it is waited for (chunk +53 %, JSON +32 %); one task closes all idle
    connections, not one for each (JSON +31 %, idle connection +9 KiB); a client that reads nothing
    for too long is closed; one that is refused while it sends can read why; one that leaves is
    noticed although it sent its next request early.
- `hypercorn.events.Closed`: hypercorn wants the connection closed, or hears that it was.
- `hypercorn.events.Event`: what hypercorn sends.
- `hypercorn.events.RawData`: bytes from and to the socket.
- `hypercorn.events.Updated`: the connection is idle, or busy again.
- `hypercorn.protocol.h11.H11Protocol.can_read`: hypercorn stops reading while it waits for this.
- `hypercorn.protocol.h11.H11Protocol.handle(event)`: gives hypercorn what was read.
- `hypercorn.trio.worker_context.WorkerContext(max_requests)`: hypercorn needs one.
- `hypercorn.trio.worker_context.WorkerContext.terminated`: set at shutdown.

`http1` extends the protocol:
- `hypercorn.protocol.h11.H11Protocol`: the base class.
- `hypercorn.protocol.h11.H11Protocol.__init__(app, config, context, task_group, connection_state,
  ssl, client, server, send)`: adds the way to the socket.
- `hypercorn.protocol.h11.H11Protocol.config`: has the paths of WebSockets.
- `hypercorn.protocol.h11.H11Protocol.connection`: h11's. A chunk is framed without it and without
  ASGI messages (chunk +18 %).
- `hypercorn.protocol.h11.H11Protocol._check_protocol(event)`: would upgrade to HTTP/2, where the
  server would not notice that a client leaves.
- `hypercorn.protocol.h11.H11Protocol._create_stream(request)`: would start any WebSocket.
- `hypercorn.protocol.h11.H11Protocol._send_error_response(status_code)`: would have no JSON body.
- `hypercorn.protocol.h11.H11Protocol._send_h11_event(event)`: sends that error.

`strict` reads the size of a chunk, which h11 lets grow without bounds and does not show:
- `h11.Connection._reader`: reads the current part of a request.
- `h11._readers.ChunkedReader`: reads a body in chunks.
- `h11._readers.ChunkedReader._bytes_in_chunk`: what is left of the current one.

`incoming` passes messages of the client by a call (JSON +27 %, held stream +7 KiB):
- `hypercorn.trio.task_group.TaskGroup`: the base class; its channel is kept for WebSockets.
- `hypercorn.trio.task_group.TaskGroup.spawn(func, *args)`: runs a request.
- `hypercorn.trio.task_group.TaskGroup.spawn_app(app, config, scope, send)`: would open the channel.
- `hypercorn.trio.task_group._handle(app, config, scope, receive, send, sync_spawn, call_soon)`:
  runs the app, and ends the response when it returns.

`connection` serves one request; quart-trio would read that channel in a task of its own:
- `quart_trio.asgi.TrioASGIHTTPConnection`: the base class.
- `quart_trio.asgi.TrioASGIHTTPConnection.__call__(receive, send)`: would send the last message
  from inside a nursery that is cancelled, and never close the connection.
- `quart_trio.asgi.TrioASGIHTTPConnection.app`: is informed of the end.
- `quart_trio.asgi.TrioASGIHTTPConnection.scope`: carries the exchange.
- `quart_trio.asgi.TrioASGIHTTPConnection._create_request_from_scope(send)`: makes the request.
- `quart_trio.asgi.TrioASGIHTTPConnection._send_response(send, response)`: would iterate the body.
- `quart_trio.wrappers.request.TrioBody`: the base class.
- `quart_trio.wrappers.request.TrioBody.__init__(expected_content_length, max_content_length)`:
  would refuse by the declared length alone, while the client sends.
- `quart_trio.wrappers.request.TrioRequest`: the base class.
- `quart_trio.wrappers.request.TrioRequest.body_class`: names the body's class.
- `quart.utils.encode_headers(headers)`: makes a response's headers bytes.
"""
