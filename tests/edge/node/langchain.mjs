// LangChain for JavaScript on either API: `stream`, bound tools, the loop with tool messages, objects, errors, abort.
import { HumanMessage } from "@langchain/core/messages";
import { concat } from "@langchain/core/utils/stream";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { apiKey, baseURL, failures, giveUp, meeting, model, outputs } from "./shared.mjs";
import { parameters, play, wrongKey } from "./shared.mjs";

const chat = (more = {}) =>
  new ChatOpenAI({
    model,
    apiKey,
    configuration: { baseURL },
    useResponsesApi: process.argv[2] === "responses",
    maxRetries: 0,
    timeout: 30_000,
    ...more,
  });
const tools = Object.entries(parameters).map(([name, schema]) =>
  tool(outputs[name], { name, description: name, schema }),
);
const bound = () => chat().bindTools(tools, { strict: true });

async function gathered(stream) {
  let whole;
  let pieces = 0;
  for await (const chunk of stream) {
    pieces += chunk.text ? 1 : 0;
    whole = whole ? concat(whole, chunk) : chunk;
  }
  return { whole, pieces };
}

const understood = (message) => ({
  content: message.text,
  calls: message.tool_calls.map(({ id, name, args: input }) => ({ id, name, input })),
  finish: message.response_metadata.finish_reason ?? message.response_metadata.status,
  tokens: message.usage_metadata?.total_tokens,
});

async function streamed(words, runnable = chat()) {
  const { whole, pieces } = await gathered(await runnable.stream(words));
  return { ...understood(whole), pieces };
}

async function looped(words) {
  const messages = [new HumanMessage(words)];
  const { whole } = await gathered(await bound().stream(messages));
  const results = [];
  for (const call of whole.tool_calls) {
    results.push(await tools.find(({ name }) => name === call.name).invoke(call));
  }
  const { whole: last } = await gathered(await bound().stream([...messages, whole, ...results]));
  return { final: last.text, ran: results.map(({ content }) => content) };
}

const describe = (error) => ({
  status: error.status ?? null,
  code: error.code ?? null,
  message: error.message,
});

await play({
  text: () => streamed("TEXT"),
  silence: () => streamed("PAUSE"),
  text_at_once: async () => understood(await chat().invoke("TEXT")),
  one_call: () => streamed("ONECALL", bound()),
  three_calls: () => streamed("BURST", bound()),
  loop: () => looped("Please use readNote"),
  loop_of_three: () => looped("BURST"),
  structured: async () => {
    const form = chat().withStructuredOutput(meeting, { method: "jsonSchema", strict: true });
    const { whole } = await gathered(await form.stream("When do we meet?"));
    return [await form.invoke("When do we meet?"), whole];
  },
  errors: () =>
    failures(
      {
        wrong_key: () => chat({ apiKey: wrongKey }).invoke("TEXT"),
        limit: () => chat().invoke("E429"),
        limit_streamed: () => streamed("E429"),
        mid_stream: () => streamed("CUT"),
      },
      describe,
    ),
  abort: () =>
    giveUp(
      async (signal, hear) => {
        for await (const { text } of await chat().stream("HANG", { signal })) {
          if (text) hear(text);
        }
      },
      async () => (await chat().invoke("TEXT")).text,
    ),
});
