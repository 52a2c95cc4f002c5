import { work } from "./worker.mjs";

const stop = work("emails", async (payload, task, signal) => {
  if (payload.fail && task.attempt === 1) throw new Error("try again");
  if (payload.forever) await new Promise((_, end) => signal.addEventListener("abort", () => end(signal.reason)));
  return { sent: payload.to, attempt: task.attempt, size: payload.text?.length ?? 0 };
});
process.once("SIGTERM", stop);
