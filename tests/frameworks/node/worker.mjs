// A worker on Node, of fairq/wire/PROTOCOL.md and the package `ws`: work("emails", async (payload, task, signal) => …).
import WebSocket from "ws";

const { FAIRQ_URL: url = "ws://127.0.0.1:7700", FAIRQ_TOKEN: token = "dev-worker" } = process.env;
const FINAL = [4001, 4002]; // close codes: the token was revoked; a later worker has the name
const RETRYABLE = ["unavailable", "outcome_unknown", "too_many", "draining", "repairing", "store_full"];

export function work(queue, handler, { credit = 10, name = `node-${process.pid}` } = {}) {
  const held = new Map(), answers = new Map(), started_at_ms = Date.now(); // held: leases, until their end is answered
  let socket, ref = 0, failures = 0, isAttached = false, isEnding = false;
  const send = (frame) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(frame));
  const ask = (frame, answer, mayAsk = isAttached) => mayAsk && (answers.set(++ref, answer), send({ ref, ...frame }));
  const renew = ({ fence, stop }) =>
    ask({ type: "settle", queue, settlements: [{ action: "extend", ...fence }] }, ({ body }) => body && body.outcomes[0] !== "ok" && stop.abort());
  const settle = (lease) =>
    ask({ type: "settle", queue, settlements: [{ ...lease.fence, ...lease.end }] }, ({ type, code, message }) => {
      if (type === "reply") return held.delete(lease.key) && isEnding && !held.size && socket.close();
      if (!RETRYABLE.includes(code)) lease.end = { action: "reject", error: `${code}: ${message}` }; // such as too_large
      setTimeout(settle, 1000, lease);
    });
  const run = async (task, payload, lease_ms) => {
    const fence = { id: task.id, lease: task.lease }, stop = new AbortController(), key = `${task.id} ${task.lease}`;
    const lease = { key, fence, stop }, renewal = setInterval(renew, lease_ms / 3, lease);
    held.set(key, lease);
    const done = (result = null) => ({ action: "ack", ...(task.wants_result && { result }) });
    const failed = (error) => ({ action: stop.signal.aborted ? "release" : "nack", error: String(error).slice(0, 2048) });
    lease.end = await handler(payload, task, stop.signal).then(done, failed).finally(() => clearInterval(renewal));
    settle(lease);
  };
  const read = { // what the server begins; answers have a `ref`
    welcome: () => ask({ type: "attach", worker: name, queues: [queue], credit: isEnding ? 0 : credit, started_at_ms,
      leases: [...held.values()].map(({ fence }) => ({ queue, ...fence })) }, ({ body, code }) => {
      if (!body) return socket.close(code === "superseded" ? 4002 : 1000);
      [isAttached, failures] = [true, 0];
      held.forEach((lease) => (lease.end ? settle(lease) : renew(lease))); // this stops those that are lost
    }, true),
    push: ({ tasks, lease_ms }, beside) => tasks.forEach((task) =>
      run(task, "payload_bytes" in task ? JSON.parse(beside(task.payload_bytes)) : task.payload, lease_ms)),
    stop: ({ leases }) => leases.forEach(({ id, lease }) => held.get(`${id} ${lease}`)?.stop.abort()),
    dismiss: () => { isEnding = true; },
  };
  const connect = () => {
    socket = new WebSocket(url, "fairq.v1", { headers: { Authorization: `Bearer ${token}` }, maxPayload: 32 << 20 });
    const ping = setInterval(send, 20_000, { type: "ping" }), silence = setTimeout(() => socket.terminate(), 50_000);
    socket.on("message", (data) => { // one with long payloads is binary: the frame, a line feed, and the payloads
      let at = data.indexOf("\n") + 1;
      const frame = JSON.parse(at ? data.subarray(0, at) : data);
      (answers.get(frame.ref) ?? read[frame.type])?.(frame, (bytes) => data.subarray(at, (at += bytes)));
      answers.delete(frame.ref), silence.refresh();
    });
    socket.on("error", (error) => console.error(`fairq: ${error.message}`));
    socket.on("close", (code) => {
      clearInterval(ping), clearTimeout(silence), answers.clear(), (isAttached = false);
      const isOver = (isEnding && !held.size) || FINAL.includes(code);
      if (!isOver) setTimeout(connect, Math.random() * Math.min(5000, 100 * 2 ** failures++));
    });
  };
  connect();
  return () => { isEnding = true, held.size ? ask({ type: "credit", credit: 0 }) : socket.close(); }; // to stop
}
