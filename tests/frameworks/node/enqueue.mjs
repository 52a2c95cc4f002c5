// Enqueue over HTTP with nothing but `fetch`, and wait for the result: node enqueue.mjs '{"to": "ada"}'.
const { FAIRQ_HTTP_URL: url = "http://127.0.0.1:7701", FAIRQ_TOKEN: token } = process.env;
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

async function ask(path, body) {
  const answer = await fetch(`${url}/v1/queues/emails/${path}`, body && { method: "POST", body: JSON.stringify(body), headers } || { headers });
  const reply = await answer.json();
  if (answer.ok) return reply;
  throw new Error(`${answer.status} ${reply.code}: ${reply.detail}`); // 429 and 503 have Retry-After: repeat with the same id
}

const task = await ask("tasks", { payload: JSON.parse(process.argv[2]), id: process.argv[3], result_ttl: 60 });
console.log(task.outcome, JSON.stringify((await ask(`tasks/${task.id}?wait=30`)).result));
