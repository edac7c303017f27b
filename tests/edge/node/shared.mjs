// What every client's script starts from: where the server is, its tools, and how to tell what happened.
import { z } from "zod";

export const baseURL = process.env.EDGE_BASE_URL;
export const apiKey = process.env.EDGE_API_KEY;
export const wrongKey = "sk-this-key-is-nobodys-0123456789";
export const model = "gpt-5";

// Parameters as strict mode wants them: what may be left out is nullable.
export const parameters = {
  localSearch: z.object({ query: z.string(), n: z.number().nullish() }),
  readNote: z.object({ path: z.string() }),
};
export const outputs = {
  localSearch: async ({ query }) => `found ${query}`,
  readNote: async ({ path }) => `note ${path}`,
};
export const meeting = z.object({
  title: z.string(),
  hours: z.number(),
  guests: z.array(z.object({ name: z.string(), role: z.enum(["host", "guest"]) })),
});

// Asks, hears the first words, gives up, waits for the end, then asks again with the same client.
export async function giveUp(listen, askAgain) {
  const controller = new AbortController();
  let heard = "";
  let left = 0;
  const hear = (text) => {
    heard += text;
    left ||= performance.now();
    controller.abort();
  };
  const ended = await listen(controller.signal, hear).then(
    () => "quietly",
    (error) => error.constructor.name,
  );
  return { heard, ended, ms: Math.round(performance.now() - left), next: await askAgain() };
}

// The error of each of the calls that must fail, as the client gives it to its caller.
export async function failures(attempts, describe) {
  const told = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    told[name] = await attempt().then(() => "no error", describe);
  }
  return told;
}

// Plays every scenario, one after the other, and tells of each in a line of its own.
export async function play(scenarios) {
  for (const [name, scenario] of Object.entries(scenarios)) {
    const told = await scenario().catch((error) => ({ broke: error.stack ?? String(error) }));
    process.stdout.write(`${JSON.stringify([name, told])}\n`);
  }
}
