// The OpenAI Node SDK: `.stream()` with strict tools, `runTools`, `parse`, errors, abort.
import OpenAI, { APIError } from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { apiKey, baseURL, failures, giveUp, meeting, model, outputs } from "./shared.mjs";
import { parameters, play, wrongKey } from "./shared.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 30_000 });
const chat = client.chat.completions;
const ask = (content, more = {}) => ({ model, messages: [{ role: "user", content }], ...more });
const tools = Object.entries(parameters).map(([name, schema]) =>
  zodFunction({ name, parameters: schema, function: outputs[name] }),
);
const understood = ({ message, finish_reason }) => ({
  content: message.content,
  calls: (message.tool_calls ?? []).map(({ id, function: { name, parsed_arguments } }) => ({
    id,
    name,
    input: parsed_arguments,
  })),
  finish: finish_reason,
});

async function streamed(content, more = {}) {
  let pieces = 0;
  const stream = chat.stream(ask(content, { ...more, stream_options: { include_usage: true } }));
  stream.on("content", () => (pieces += 1));
  const completion = await stream.finalChatCompletion();
  const [choice] = completion.choices;
  return { ...understood(choice), pieces, tokens: completion.usage.total_tokens };
}

async function looped(content) {
  const runner = chat.runTools({ ...ask(content), stream: true, tools });
  const ran = [];
  runner.on("functionToolCallResult", (result) => ran.push(result));
  return { final: await runner.finalContent(), ran };
}

const describe = (error) => ({
  api: error instanceof APIError,
  name: error.constructor.name,
  status: error.status ?? null,
  code: error.code ?? null,
  param: error.param ?? null,
  type: error.type ?? null,
  request: Boolean(error.requestID),
});

await play({
  text: () => streamed("TEXT"),
  silence: () => streamed("PAUSE"),
  text_at_once: async () => understood((await chat.create(ask("TEXT"))).choices[0]),
  one_call: () => streamed("ONECALL", { tools }),
  three_calls: () => streamed("BURST", { tools }),
  loop: () => looped("Please use readNote"),
  loop_of_three: () => looped("BURST"),
  structured: async () => {
    const form = { response_format: zodResponseFormat(meeting, "meeting") };
    const parsed = await chat.parse(ask("When do we meet?", form));
    const stream = await chat.stream(ask("When do we meet?", form)).finalChatCompletion();
    return [parsed, stream].map(({ choices: [{ message }] }) => message.parsed);
  },
  errors: () =>
    failures(
      {
        wrong_field: () => chat.create(ask("TEXT", { tools: "hammer" })),
        wrong_key: () => client.withOptions({ apiKey: wrongKey }).models.list(),
        unknown_model: () => client.models.retrieve("no-such-model"),
        limit: () => chat.create(ask("E429")),
        limit_streamed: () => chat.stream(ask("E429")).finalContent(),
        mid_stream: () => chat.stream(ask("CUT")).finalContent(),
      },
      describe,
    ),
  abort: () =>
    giveUp(
      (signal, hear) =>
        chat.stream(ask("HANG"), { signal }).on("content", hear).finalChatCompletion(),
      async () => (await chat.create(ask("TEXT"))).choices[0].message.content,
    ),
});
