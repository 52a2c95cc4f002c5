// BullMQ: one worker process. Speaks what peerlib.py describes: orders in, answers out, starts noted in lines of 47 bytes.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const { Queue, Worker, createPostgresBackend, createRedisBackend } = require("bullmq");

const settings = JSON.parse(process.env.LOADTEST_PEER);
const isPostgres = settings.backend === "postgres";
const backend = isPostgres ? createPostgresBackend : createRedisBackend;
const pool = { user: "postgres", max: settings.slots, idleTimeoutMillis: 0, migrate: true };
const options = isPostgres ? pool : { maxRetriesPerRequest: null };
const connection = { host: "127.0.0.1", port: settings.port, ...options };
const CHUNK = 1000;
const PADDING = "x".repeat(168);
const JOB = { removeOnComplete: true };

// The wall clock in us: node's own is exact to ms, so the origin is taken as it changes.
const tick = Date.now();
while (Date.now() === tick);
const origin = Date.now() - performance.now();
const nowUs = () => Math.round((origin + performance.now()) * 1000);

function payloadOf(prefix, number, ms) {
  const id = prefix + String(number).padStart(8, "0");
  return id + String(nowUs()).padStart(16, "0") + String(ms).padStart(4, "0") + PADDING;
}

async function enqueue(queue, { do: how, prefix, count, ms = 0, every_s = 0 }) {
  const beganAt = nowUs();
  const cpu = process.cpuUsage();
  if (how === "one") {
    for (let i = 0; i < count; i++) {
      if (every_s) await new Promise((resolve) => setTimeout(resolve, (beganAt - nowUs()) / 1e3 + i * every_s * 1e3));
      await queue.add("handle", payloadOf(prefix, i, ms), JOB);
    }
  } else {
    for (let start = 0; start < count; start += CHUNK) {
      const jobs = [];
      for (let i = start; i < Math.min(start + CHUNK, count); i++) {
        jobs.push({ name: "handle", data: payloadOf(prefix, i, ms), opts: JOB });
      }
      await queue.addBulk(jobs);
    }
  }
  const { user, system } = process.cpuUsage(cpu);
  return { began_us: beganAt, seconds: (nowUs() - beganAt) / 1e6, cpu_s: (user + system) / 1e6 };
}

async function produce() {
  const queue = new Queue("work", { connection }, backend);
  await queue.waitUntilReady();
  const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
  say({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    if (order.do === "left") {
      const counts = await queue.getJobCounts("waiting", "active", "delayed", "failed");
      say({ left: Object.values(counts).reduce((sum, count) => sum + count, 0) });
    } else {
      say(await enqueue(queue, order));
    }
  }
  await queue.close();
}

function work() {
  const record = fs.openSync(settings.record, "a");
  const handle = async ({ data }) => {
    fs.writeSync(record, `${data.slice(0, 12)} ${String(nowUs()).padStart(16, "0")} ${data.slice(12, 28)}\n`);
    const ms = Number(data.slice(28, 32));
    if (ms) await new Promise((resolve) => setTimeout(resolve, ms));
  };
  const worker = new Worker("work", handle, { connection, concurrency: settings.slots }, backend);
  process.once("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

if (process.argv[2] === "produce") produce();
else work();
