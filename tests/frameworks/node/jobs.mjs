import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as pass } from "node:timers/promises";
import { work } from "./worker.mjs";

const stop = work("emails", async (payload, task, signal) => {
  if (payload.fail && task.attempt === 1) throw new Error("try again");
  if (payload.journal) appendFileSync(payload.journal, `${task.id} ${task.attempt}\n`);
  while (payload.until && !existsSync(payload.until)) await pass(10, null, { signal });
  if (payload.forever) await new Promise((_, end) => signal.addEventListener("abort", () => end(signal.reason)));
  return { sent: payload.to, attempt: task.attempt, size: payload.text?.length ?? 0 };
});
process.once("SIGTERM", stop);
