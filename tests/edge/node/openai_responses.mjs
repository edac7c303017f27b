// The OpenAI Node SDK on the Responses API: `.stream()` with strict tools, `parse`, `compact`, errors, abort.
import OpenAI, { APIError } from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { apiKey, baseURL, failures, giveUp, meeting, model, outputs } from "./shared.mjs";
import { parameters, play, wrongKey } from "./shared.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 30_000 });
const { responses } = client;
const ask = (input, more = {}) => ({ model, input, ...more });
const tools = Object.entries(parameters).map(([name, schema]) =>
  zodResponsesFunction({ name, parameters: schema }),
);
const made = ({ output }) => output.filter(({ type }) => type === "function_call");
const understood = (response) => ({
  content: response.output_text,
  calls: made(response).map(({ call_id: id, name, arguments: words }) => ({
    id,
    name,
    input: JSON.parse(words),
  })),
  finish: response.status,
});

async function streamed(input, more = {}) {
  let pieces = 0;
  const stream = responses.stream(ask(input, more));
  stream.on("response.output_text.delta", () => (pieces += 1));
  const response = await stream.finalResponse();
  return { ...understood(response), pieces, tokens: response.usage.total_tokens };
}

// Runs the tools, then gives only what they said: the server knows the rest.
async function looped(words) {
  const first = await responses.stream(ask(words, { tools })).finalResponse();
  const ran = [];
  const results = [];
  for (const { call_id, name, parsed_arguments } of made(first)) {
    const output = await outputs[name](parsed_arguments);
    ran.push(output);
    results.push({ type: "function_call_output", call_id, output });
  }
  const more = { tools, previous_response_id: first.id };
  const last = await responses.stream(ask(results, more)).finalResponse();
  return { final: last.output_text, ran };
}

const describe = (error) => ({
  api: error instanceof APIError,
  name: error.constructor.name,
  status: error.status ?? null,
  code: error.code ?? null,
  param: error.param ?? null,
  message: error.message,
  request: Boolean(error.requestID),
});

await play({
  text: () => streamed("TEXT"),
  silence: () => streamed("PAUSE"),
  text_at_once: async () => understood(await responses.create(ask("TEXT"))),
  one_call: () => streamed("ONECALL", { tools }),
  three_calls: () => streamed("BURST", { tools }),
  loop: () => looped("Please use readNote"),
  loop_of_three: () => looped("BURST"),
  structured: async () => {
    const form = { text: { format: zodTextFormat(meeting, "meeting") } };
    const parsed = await responses.parse(ask("When do we meet?", form));
    const stream = await responses.stream(ask("When do we meet?", form)).finalResponse();
    return [parsed, stream].map(({ output_parsed }) => output_parsed);
  },
  compacted: async () => {
    const first = await responses.create(ask("I like plums"));
    const said = [{ role: "user", content: "I like plums" }, ...first.output];
    const { object, output, usage } = await responses.compact(ask(said));
    const again = await responses.create(ask([...output, { role: "user", content: "RECALL said:" }]));
    return { object, tokens: usage.total_tokens, recalled: again.output_text };
  },
  kept: async () => {
    const first = await responses.create(ask("TEXT"));
    const kept = await responses.retrieve(first.id);
    const items = [];
    for await (const item of responses.inputItems.list(first.id)) items.push(item.type);
    await responses.delete(first.id);
    const gone = await responses.retrieve(first.id).then(() => null, describe);
    return { text: kept.output_text, items, gone: gone?.status };
  },
  errors: () =>
    failures(
      {
        wrong_field: () => responses.create(ask("TEXT", { tools: "hammer" })),
        wrong_key: () => client.withOptions({ apiKey: wrongKey }).responses.create(ask("TEXT")),
        limit: () => responses.create(ask("E429")),
        limit_streamed: () => responses.stream(ask("E429")).finalResponse(),
        mid_stream: async () => {
          for await (const event of await responses.create(ask("CUT", { stream: true }))) void event;
        },
      },
      describe,
    ),
  abort: () =>
    giveUp(
      (signal, hear) =>
        responses
          .stream(ask("HANG"), { signal })
          .on("response.output_text.delta", ({ delta }) => hear(delta))
          .finalResponse(),
      async () => (await responses.create(ask("TEXT"))).output_text,
    ),
});
