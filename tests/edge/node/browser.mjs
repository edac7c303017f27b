// A page in headless Chromium that talks to the server from another origin, as a web app does.
import { createServer } from "node:http";
import { setTimeout as after } from "node:timers/promises";
import { chromium } from "playwright-core";
import { apiKey, baseURL, model, play, wrongKey } from "./shared.mjs";

// Everything that the page tries to reach is on this machine; no other name is even looked up.
const RULES = "MAP localhost 127.0.0.1, MAP elsewhere.test 127.0.0.1, MAP * ~NOTFOUND";
const unpacked = process.argv[2];

// Runs in the page: posts a streamed chat completion and reads it piece by piece.
async function converse({ url, key, model, words, until }) {
  const controller = new AbortController();
  const response = await fetch(url, {
    method: "POST",
    headers: {
      authorization: `Bearer ${key}`,
      "content-type": "application/json",
      "x-edge-note": "any header of the page's own",
    },
    body: JSON.stringify({ model, stream: true, messages: [{ role: "user", content: words }] }),
    signal: controller.signal,
  });
  const told = {
    status: response.status,
    type: response.headers.get("content-type"),
    identified: Boolean(response.headers.get("x-request-id")),
    body: "",
    left: false,
  };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    told.body += read.value;
    if (until && told.body.includes(until)) {
      told.left = true;
      controller.abort();
      break;
    }
  }
  return told;
}

// What the browser asked before it sent the page's request, and why it kept an answer to itself. It tells
// of either by a way of its own, on which the page's result may overtake it: whoever needs one waits.
async function watched(page, origin) {
  const session = await page.context().newCDPSession(page);
  const seen = { preflights: [], refusals: [] };
  const asked = new Promise((told) =>
    session.on("Network.responseReceived", ({ type, response: { status, headers } }) => {
      if (type !== "Preflight") return;
      const allowed = headers["access-control-allow-headers"] ?? "";
      const welcome = headers["access-control-allow-origin"] === origin;
      seen.preflights.push({ status, welcome, headers: allowed.split(/, */) });
      told();
    }),
  );
  const refused = new Promise((told) =>
    session.on("Network.loadingFailed", ({ corsErrorStatus }) => {
      if (!corsErrorStatus) return;
      seen.refusals.push(corsErrorStatus.corsError);
      told();
    }),
  );
  await session.send("Network.enable");
  return { seen, asked, refused };
}

const site = createServer((_, response) => {
  response.setHeader("content-type", "text/html");
  response.end("<!doctype html><title>a page</title>");
});
await new Promise((listening) => site.listen(0, "127.0.0.1", listening));
const browser = await chromium.launch({
  executablePath: `${unpacked}/chromium`,
  env: { ...process.env, LD_LIBRARY_PATH: `${unpacked}/al2023/lib` },
  args: [`--host-resolver-rules=${RULES}, EXCLUDE 127.0.0.1`, "--disable-gpu"],
  timeout: 20_000,
});

async function visit(host, ask) {
  const context = await browser.newContext(); // remembers no preflight of another visit
  const page = await context.newPage();
  const origin = `http://${host}:${site.address().port}`;
  await page.goto(origin);
  const { seen, asked, refused } = await watched(page, origin);
  const answer = await ask(page).catch((error) => ({ failed: error.message.split("\n")[0] }));
  await Promise.race([answer.failed ? refused : asked, after(10_000, null, { ref: false })]);
  await context.close();
  return { ...answer, ...seen };
}

const url = `${baseURL}/chat/completions`;
const talk = (words, more = {}) => (page) =>
  page.evaluate(converse, { url, key: apiKey, model, words, ...more });

await play({
  streamed: () => visit("localhost", talk("TEXT")),
  first_words: () => visit("localhost", talk("HANG", { until: "Wait" })),
  wrong_key: () => visit("localhost", talk("TEXT", { key: wrongKey })),
  elsewhere: () => visit("elsewhere.test", talk("TEXT")),
  elsewhere_simple: () =>
    visit("elsewhere.test", (page) =>
      page.evaluate((address) => fetch(address).then(() => ({ read: true })), `${baseURL}/models`),
    ),
});
await browser.close();
site.close();
