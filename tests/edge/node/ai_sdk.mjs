// The AI SDK over its providers: `streamText`, objects, errors, abort.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { apiKey, baseURL, failures, giveUp, meeting, model, outputs } from "./shared.mjs";
import { parameters, play, wrongKey } from "./shared.mjs";

const providers = {
  openai: (key) => createOpenAI({ baseURL, apiKey: key }).chat,
  responses: (key) => createOpenAI({ baseURL, apiKey: key }).responses,
  compatible: (key) =>
    createOpenAICompatible({
      name: "edge",
      baseURL,
      apiKey: key,
      includeUsage: true,
      supportsStructuredOutputs: true,
    }),
};
const provider = (key = apiKey) => providers[process.argv[2]](key);
const ask = (prompt, more = {}) => ({
  model: provider()(model),
  prompt,
  maxRetries: 0,
  onError: () => {}, // it would write to the console
  ...more,
});
const declared = (execute) =>
  Object.fromEntries(
    Object.entries(parameters).map(([name, inputSchema]) => [
      name,
      tool({ inputSchema, strict: true, ...(execute && { execute: outputs[name] }) }),
    ]),
  );
const calls = (made) => made.map(({ toolCallId: id, toolName: name, input }) => ({ id, name, input }));

async function streamed(prompt, more = {}) {
  const result = streamText(ask(prompt, more));
  let content = "";
  let pieces = 0;
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type !== "text-delta") continue;
    content += part.text;
    pieces += 1;
  }
  const [made, finish, usage] = [await result.toolCalls, await result.finishReason, await result.usage];
  return { content, calls: calls(made), finish, pieces, tokens: usage.totalTokens };
}

async function looped(prompt) {
  const result = streamText(ask(prompt, { tools: declared(true), stopWhen: stepCountIs(2) }));
  await result.consumeStream();
  const [first, second] = await result.steps;
  const ran = first.toolResults.map(({ output }) => output);
  return { final: second.text, ran, finishes: [first.finishReason, second.finishReason] };
}

// A model that thought before it spoke is asked about what it said.
async function twoTurns() {
  const question = { role: "user", content: "REASON" };
  const first = streamText(ask(undefined, { messages: [question] }));
  await first.consumeStream();
  const said = (await first.response).messages;
  const again = { role: "user", content: "RECALL 42" };
  const second = streamText(ask(undefined, { messages: [question, ...said, again] }));
  return { first: await first.text, thought: await first.reasoningText, second: await second.text };
}

const describe = (error) => ({
  api: APICallError.isInstance(error),
  status: error.statusCode ?? null,
  code: error.data?.error?.code ?? error.error?.code ?? error.code ?? null,
  param: error.data?.error?.param ?? null,
  message: error.message ?? String(error),
});

await play({
  text: () => streamed("TEXT"),
  silence: () => streamed("PAUSE"),
  text_at_once: async () => {
    const { text, finishReason, toolCalls } = await generateText(ask("TEXT"));
    return { content: text, calls: calls(toolCalls), finish: finishReason };
  },
  one_call: () => streamed("ONECALL", { tools: declared() }),
  three_calls: () => streamed("BURST", { tools: declared() }),
  loop: () => looped("Please use readNote"),
  loop_of_three: () => looped("BURST"),
  two_turns: twoTurns,
  structured: async () => {
    const form = ask("When do we meet?", { output: Output.object({ schema: meeting }) });
    const streaming = streamText(form);
    return [(await generateText(form)).output, await streaming.output];
  },
  errors: () =>
    failures(
      {
        wrong_key: () => generateText(ask("TEXT", { model: provider(wrongKey)(model) })),
        limit: () => generateText(ask("E429")),
        limit_streamed: () => streamed("E429"),
        mid_stream: () => streamed("CUT"),
      },
      describe,
    ),
  abort: () =>
    giveUp(
      async (abortSignal, hear) => {
        const result = streamText(ask("HANG", { abortSignal }));
        for await (const text of result.textStream) hear(text);
      },
      async () => (await generateText(ask("TEXT"))).text,
    ),
});
