// A worker on Node, of fairq/wire/PROTOCOL.md and the package `ws`: work("emails", async (payload, task, signal) => …).
import WebSocket from "ws";

const { FAIRQ_URL: url = "ws://127.0.0.1:7700", FAIRQ_TOKEN: token = "dev-worker" } = process.env;
const FOR_GOOD = [4001, 4002]; // the token was revoked; a later worker has the name
const PING_MS = 20_000, SILENT_MS = 50_000;

export function work(queue, handler, { credit = 10, name = `node-${process.pid}` } = {}) {
  const held = new Map(); // by id and lease: what runs, and settlements that are not answered yet
  const started_at_ms = Date.now();
  let socket, ref = 0, failures = 0, isAttached = false, isEnding = false;
  const answers = new Map();
  const send = (frame) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(frame));
  const ask = (frame, answer) => (answers.set(++ref, answer), send({ ref, ...frame }));
  const drop = (lease) => (held.delete(lease.key), lease.stop.abort(), isEnding && !held.size && socket.close());
  const settle = (lease, action, more = {}) => {
    lease.settlement ??= { action, id: lease.id, lease: lease.lease, ...more };
    if (held.get(lease.key) !== lease || !isAttached) return; // it was lost; or it is sent after the next `attach`
    ask({ type: "settle", queue, settlements: [lease.settlement] }, ({ type, code, message, retry_in_ms }) => {
      if (type === "reply") return drop(lease);
      if (!["unavailable", "store_full", "repairing"].includes(code)) // such as a result that is too long
        lease.settlement = { action: "reject", id: lease.id, lease: lease.lease, error: `${code}: ${message}` };
      setTimeout(settle, retry_in_ms ?? 1000, lease);
    });
  };
  const run = async (task, payload, lease_ms) => {
    const lease = { id: task.id, lease: task.lease, key: `${task.id} ${task.lease}`, stop: new AbortController() };
    held.set(lease.key, lease);
    const renewal = setInterval(() => isAttached && ask({ type: "extend", queue, leases: [{ id: lease.id, lease: lease.lease }] },
      ({ body }) => body && body.outcomes[0] !== "ok" && lease.stop.abort()), lease_ms / 3);
    try {
      const result = await handler(payload, task, lease.stop.signal);
      settle(lease, lease.stop.signal.aborted ? "release" : "ack", task.wants_result ? { result: result ?? null } : {});
    } catch (error) {
      settle(lease, lease.stop.signal.aborted ? "release" : "nack", { error: String(error).slice(0, 2048) });
    } finally {
      clearInterval(renewal);
    }
  };
  const read = { // a frame with long payloads is binary: its text, a line feed, and the payloads
    welcome: () => ask({ type: "attach", worker: name, queues: [queue], credit, started_at_ms,
      leases: [...held.values()].map(({ id, lease }) => ({ queue, id, lease })) }, ({ body, message }) => {
      if (!body) return socket.close(1000, message);
      const leases = [...held.values()];
      [isAttached, failures] = [true, 0];
      leases.forEach((lease, at) => (body.leases[at] === "ok" || lease.settlement ? lease.settlement && settle(lease) : drop(lease)));
      if (isEnding) send({ type: "drain" });
    }),
    push: ({ tasks, lease_ms }, beside) => tasks.forEach((task) => run(task, "payload_bytes" in task ? JSON.parse(beside(task.payload_bytes)) : task.payload, lease_ms)),
    stop: ({ leases }) => leases.forEach(({ id, lease }) => held.get(`${id} ${lease}`)?.stop.abort()),
    dismiss: () => { isEnding = true; },
    reply: (frame) => (answers.get(frame.ref)?.(frame), answers.delete(frame.ref)),
    error: (frame) => (answers.get(frame.ref)?.(frame), answers.delete(frame.ref)),
  };
  const connect = () => {
    socket = new WebSocket(url, "fairq.v1", { headers: { Authorization: `Bearer ${token}` }, maxPayload: 32 << 20 });
    const ping = setInterval(() => send({ type: "ping" }), PING_MS);
    let silent = setTimeout(() => socket.terminate(), SILENT_MS);
    socket.on("message", (data) => {
      clearTimeout(silent), (silent = setTimeout(() => socket.terminate(), SILENT_MS));
      const end = data.indexOf("\n"), frame = JSON.parse(end < 0 ? data : data.subarray(0, end));
      let at = end + 1;
      read[frame.type]?.(frame, (bytes) => data.subarray(at, (at += bytes)));
    });
    socket.on("error", (error) => console.error(`fairq: ${error.message}`));
    socket.on("close", (code) => {
      clearInterval(ping), clearTimeout(silent), answers.clear(), (isAttached = false);
      if (!(isEnding && !held.size) && !FOR_GOOD.includes(code))
        setTimeout(connect, Math.random() * Math.min(5000, 100 * 2 ** failures++));
    });
  };
  connect();
  return () => { isEnding = true, held.size ? send({ type: "drain" }) : socket.close(); }; // to stop
}
