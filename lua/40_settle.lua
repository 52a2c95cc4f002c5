-- The verb `settle`: what becomes of a lease. The fence is (id, attempt): every lease has its own attempt number, so a
-- late owner can never touch the lease that came after his.
--
--   action   the lease ends, and the task is                                       the attempt
--   ack      done: forgotten, its id remembered                                     counts
--   nack     delayed by detail (ms; empty: backoff with full jitter), or dead       counts
--   reject   dead at once, `rejected`                                               counts
--   release  back at the head of its tenant's list                                  is forgiven: max_attempts moves up
--   reap     as release, or dead as `lease_lost` when it was the last               counts
--   extend   (the lease goes on for another lease_ms)                               -

-- Ended leases are written by `flush` at the end, each kind in one command: call.ended (ids that leave `leases`),
-- call.runs (id -> packed run, or false), call.forgotten (ids that leave `tasks`), call.done (id, attempt, ...).
local function end_lease(call, id, run, state)
  local t = touch(call, run.tenant)
  call.ended[#call.ended + 1] = id
  t.leased, call.queue.leased = t.leased - 1, call.queue.leased - 1
  correct(call, t, run)
  run.state, run.cost, run.worker = state, 0, ''
  return t
end

local function flush(call)
  local kept, gone = {}, {}
  for id, packed in pairs(call.runs) do
    if packed then
      kept[#kept + 1] = id
      kept[#kept + 1] = packed
    else
      gone[#gone + 1] = id
    end
  end
  write('HSET', key(call, 'runs'), kept)
  write('HDEL', key(call, 'runs'), gone)
  write('ZREM', key(call, 'leases'), call.ended)
  write('HDEL', key(call, 'tasks'), call.forgotten)
  if #call.done > 0 then
    write('HSET', done_key(call, 0), call.done)
    redis.call('PEXPIRE', done_key(call, 0), 2 * DONE_WINDOW_MS)
  end
end

local function is_last_attempt(run)
  return run.attempt - run.forgiven >= run.max_attempts
end

local function bury(call, t, id, run, reason)
  call.runs[id] = false
  put_dead(call, t, id, reason, run.attempt, run.error)
end

-- The task waits for its next attempt, its run with it; the window's end is watched again.
local function keep_waiting(call, id, run)
  call.runs[id] = pack_run(run)
  if run.expires_at > 0 then redis.call('ZADD', key(call, 'expiring'), run.expires_at, id) end
end

-- Full jitter: anywhere up to min(cap, base * 2^(attempt - 1)).
local function backoff_ms(call, run)
  local q = call.queue
  return math.floor(random(call) * math.min(q.retry_cap_ms, q.retry_base_ms * 2 ^ math.min(run.attempt - 1, 40))) + 1
end

local actions = {}

function actions.ack(call, id, run)
  local t = end_lease(call, id, run, SETTLED)
  call.runs[id] = false
  call.forgotten[#call.forgotten + 1] = id
  call.done[#call.done + 1] = id
  call.done[#call.done + 1] = run.attempt
  t.done, call.queue.done = t.done + 1, call.queue.done + 1
end

function actions.nack(call, id, run, delay, message)
  local t = end_lease(call, id, run, SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  if is_last_attempt(run) then return bury(call, t, id, run, EXHAUSTED) end
  keep_waiting(call, id, run)
  local delay_ms = tonumber(delay) or backoff_ms(call, run)
  if delay_ms > 0 then put_delayed(call, t, id, call.now + delay_ms) else put_ready(call, t, {id}) end
end

function actions.reject(call, id, run, _, message)
  local t = end_lease(call, id, run, SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  bury(call, t, id, run, REJECTED)
end

function actions.release(call, id, run)
  local t = end_lease(call, id, run, SETTLED)
  run.forgiven = run.forgiven + 1
  keep_waiting(call, id, run)
  put_ready(call, t, {id}, 'LPUSH')
end

function actions.reap(call, id, run)
  local t = end_lease(call, id, run, REAPED)
  if is_last_attempt(run) then return bury(call, t, id, run, LEASE_LOST) end
  keep_waiting(call, id, run)
  put_ready(call, t, {id}, 'LPUSH')
end

function actions.extend(call, id)
  redis.call('ZADD', key(call, 'leases'), call.now + call.queue.lease_ms, id)
end

-- Why this token does not open the lease: `gone` if its own owner settled it already, else `stale`.
local function refusal(call, id, attempt, run)
  if run then
    return run.attempt == attempt and run.state == SETTLED and 'gone' or 'stale'
  end
  local settled = redis.call('HGET', done_key(call, 0), id) or redis.call('HGET', done_key(call, 1), id)
  if settled then return tonumber(settled) == attempt and 'gone' or 'stale' end
  local death = redis.call('HGET', key(call, 'dead'), id)
  if not death then return 'gone' end
  local reason, attempts = struct.unpack(DEATH_FORMAT, death)
  return attempts == attempt and (reason == EXHAUSTED or reason == REJECTED) and 'gone' or 'stale'
end

-- id -> run, one for all mentions of an id, so that what the first does the next one sees; and their tenants.
local function load_runs(call, ids)
  local runs, names = {}, {}
  for i, packed in ipairs(redis.call('HMGET', key(call, 'runs'), unpack(ids))) do
    if packed and not runs[ids[i]] then
      runs[ids[i]] = load_run(packed)
      names[#names + 1] = runs[ids[i]].tenant
    end
  end
  load_tenants(call, names)
  return runs
end

local function settle_one(call, id, attempt, run, action, delay, message)
  if not run or run.state ~= LEASED or run.attempt ~= attempt then return refusal(call, id, attempt, run) end
  action(call, id, run, delay, message)
  return 'ok'
end

-- settle(keys, argv): end or extend leases, each fenced by (id, attempt).
--   keys  1 prefix
--   argv  1 now  2 dice  then per lease (at most 500): action, id, attempt, delay_ms (nack; may be empty), error
--   out   per lease: "ok" | "gone" (settled already by this owner, or long forgotten: not an error)
--         | "stale" (the lease was lost: another attempt owns or owned the task)
--   flags allow-oom
local function settle(keys, args)
  local call, outcomes, ids = open(keys, args), {}, {}
  if #args < 7 or (#args - 2) % 5 ~= 0 or #args > 2 + 5 * TASKS_PER_CALL then refuse('bad_request', 'settlements') end
  for i = 3, #args, 5 do
    if not actions[args[i]] then refuse('bad_request', 'action') end
    local delay = args[i + 3] == '' and 0 or tonumber(args[i + 3])
    if not (delay and delay >= 0 and delay <= HORIZON_MS) then refuse('bad_request', 'delay_ms') end
    ids[#ids + 1] = args[i + 1]
  end
  local runs, changed = load_runs(call, ids), false
  for n, id in ipairs(ids) do
    local at, run = 5 * n - 2, runs[id]
    outcomes[n] = settle_one(call, id, tonumber(args[at + 2]), run, actions[args[at]], args[at + 3], args[at + 4])
    changed = changed or outcomes[n] == 'ok'
  end
  flush(call)
  if changed then close(call) end
  return outcomes
end
