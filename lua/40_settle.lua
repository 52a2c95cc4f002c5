-- The verb `settle`: what becomes of a lease. The fence is (id, lease): a queue gives every claim another lease number,
-- also when an id is used again, so a late owner can never touch a lease that came after its own.
--
--   action   the lease ends, and the task is                                       the attempt
--   ack      done: forgotten, its id remembered                                     counts
--   finish   as ack, and its result kept where the task asked for it                counts
--   nack     delayed by detail (ms; empty: backoff with full jitter), or dead       counts
--   reject   dead at once, `rejected`                                               counts
--   release  back at the head of its tenant's list                                  is forgiven: max_attempts moves up
--   reap     as release, or dead as `lease_lost` when it was the last               counts
--   extend   (the lease goes on for another lease_ms)                               -
--
-- A task that was cancelled while it was leased (STOPPING) is done if its owner acks it; any other end of the lease
-- makes it cancelled: forgotten, its id remembered as `c<lease>`.

-- call.runs holds the packed runs that the call has read: false where there is none (any more). What it changes is
-- written by `flush`, each kind in one command: call.changed (ids whose run changed), call.ended (ids that leave
-- `leases`), call.forgotten (ids that leave `tasks`), call.done (id, lease, ...).
local function set_run(call, id, packed)
  call.runs[id], call.changed[#call.changed + 1] = packed, id
end

local function flush(call)
  local kept, gone = {}, {}
  for _, id in ipairs(call.changed) do
    local packed = call.runs[id]
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
  call.changed, call.ended, call.forgotten, call.done = {}, {}, {}, {}
end

-- Ends a call that may have ended tasks.
local function finish(call)
  finish_batches(call)
  flush(call)
  close(call)
end

-- Books the end of a lease to its tenant.
local function end_lease(call, id, name, began_at, until_ms, is_worked)
  local t, ended = touch(call, name), call.ended
  ended[#ended + 1] = id
  if call.queue.special > 0 then
    count_running(call, id, -1)
    give_place_back(call, id)
  end
  charge_lease(call, t, began_at, until_ms, is_worked)
  return t
end

-- Forgets a task that has come to its end (`how`: done or cancelled). Its id is remembered with the number of the lease
-- whose owner ended it; with 0 where none did, so that the last owner's settlement is stale.
local function forget(call, t, id, how, attempt, lease)
  local forgotten, done, n = call.forgotten, call.done, #call.done
  set_run(call, id, false)
  forgotten[#forgotten + 1] = id
  done[n + 1], done[n + 2] = id, (how == 'cancelled' and 'c' or '') .. text(lease)
  call.queue[how] = call.queue[how] + 1
  if call.queue.special == 0 then return end
  note_end(call, id, how)
  tell_of(call, t, id, how, attempt, '')
  drop_extras(call, t.name, id)
end

local function end_run(call, id, state)
  local run = load_run(call.runs[id])
  run.state, run.worker = state, ''
  return run
end

local function is_last_attempt(run)
  return run.attempt - run.forgiven >= run.max_attempts
end

local function bury(call, t, id, run, reason)
  set_run(call, id, false)
  put_dead(call, t, id, reason, run)
end

-- The task waits for its next attempt, its run with it; the window's end is watched again.
local function keep_waiting(call, t, id, run)
  set_run(call, id, pack_run(run))
  t.bytes = t.bytes + payload_bytes(t, redis.call('HSTRLEN', key(call, 'tasks'), id))
  if run.expires_at > 0 then redis.call('ZADD', key(call, 'expiring'), run.expires_at, id) end
end

-- Full jitter: anywhere up to min(cap, base * 2^(attempt - 1)), of the attempts that count.
local function backoff_ms(call, run)
  local q, before = call.queue, math.min(run.attempt - run.forgiven - 1, 40)
  return math.floor(random(call) * math.min(q.retry_cap_ms, q.retry_base_ms * 2 ^ before)) + 1
end

-- What becomes of a task of tenant t whose lease has just ended.
local actions = {}
local ARGUMENTS = {ack = 3, finish = 4, nack = 5, reject = 4, release = 3, reap = 3, extend = 3}  -- of each action

local WORKED = {ack = true, finish = true, nack = true, reject = true}  -- the handler came to an end

local function keep_result(call, id, result)
  local result_ttl = extras_of(call, id).result_ttl
  if result_ttl == 0 then return end
  local kept, ttl = string.format('%.0f ', call.now + result_ttl), string.format('%.0f', result_ttl + DONE_WINDOW_MS)
  redis.call('SET', key(call, 'result:' .. id), kept .. result, 'PX', ttl)
  note_kept(call, result_ttl)
end

local function end_well(call, t, id, attempt, lease)
  forget(call, t, id, 'done', attempt, lease)
  t.done = t.done + 1
end

function actions.ack(call, t, id, attempt, lease)
  if call.queue.special > 0 then keep_result(call, id, 'null') end
  end_well(call, t, id, attempt, lease)
end

function actions.finish(call, t, id, attempt, lease, result)
  keep_result(call, id, result)
  end_well(call, t, id, attempt, lease)
end

function actions.nack(call, t, id, _, _, delay, message)
  local run = end_run(call, id, SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  tell_of(call, t, id, 'failed', run.attempt, run.error)
  if is_last_attempt(run) then return bury(call, t, id, run, EXHAUSTED) end
  keep_waiting(call, t, id, run)
  local delay_ms = tonumber(delay) or backoff_ms(call, run)
  if delay_ms > 0 then put_delayed(call, t, id, call.now + delay_ms) else put_ready(call, t, {id}) end
end

function actions.reject(call, t, id, _, _, message)
  local run = end_run(call, id, SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  tell_of(call, t, id, 'failed', run.attempt, run.error)
  bury(call, t, id, run, REJECTED)
end

function actions.release(call, t, id)
  local run = end_run(call, id, SETTLED)
  run.forgiven = run.forgiven + 1
  keep_waiting(call, t, id, run)
  put_ready(call, t, {id}, 'LPUSH')
end

function actions.reap(call, t, id)
  local run = end_run(call, id, REAPED)
  tell_of(call, t, id, 'failed', run.attempt, REASONS[LEASE_LOST])
  if is_last_attempt(run) then return bury(call, t, id, run, LEASE_LOST) end
  keep_waiting(call, t, id, run)
  put_ready(call, t, {id}, 'LPUSH')
end

-- Why this number is not that of a lease of the task: `gone` if its own owner settled it already, else `stale`.
local function refusal(call, id, number)
  if call.runs[id] then
    local _, _, _, state, _, _, lease = struct.unpack(LEASE_FORMAT, call.runs[id])
    return lease == number and state == SETTLED and 'gone' or 'stale'
  end
  flush(call)  -- it may be this call that settled it
  local settled = redis.call('HGET', done_key(call, 0), id) or redis.call('HGET', done_key(call, 1), id)
  if settled then return tonumber((settled:gsub('^c', ''))) == number and 'gone' or 'stale' end
  local death = redis.call('HGET', key(call, 'dead'), id)
  if not death then return 'gone' end
  local reason, _, lease = struct.unpack(DEATH_FORMAT, death)
  return lease == number and (reason == EXHAUSTED or reason == REJECTED) and 'gone' or 'stale'
end

-- Reads runs, and the tenants whom they belong to.
local function read_runs(call, ids)
  local names, tenant_at = {}, struct.size('<IIHBddd') + 1
  for i, packed in ipairs(redis.call('HMGET', key(call, 'runs'), unpack(ids))) do
    call.runs[ids[i]] = packed
    if packed then names[#names + 1] = struct.unpack('Bc0', packed, tenant_at) end
  end
  read_tenants(call, names)
end

-- Ends or extends the lease of this number (nil: whichever it is), which was worked on up to `until_ms`.
local function settle_one(call, action, id, number, until_ms, ...)
  local packed = call.runs[id]
  if not packed then return refusal(call, id, number) end
  local attempt, _, _, state, began_at, _, lease, name = struct.unpack(LEASE_FORMAT, packed)
  if number and lease ~= number or not is_leased(state) then return refusal(call, id, number) end
  if action == 'extend' then
    redis.call('ZADD', key(call, 'leases'), call.now + call.queue.lease_ms, id)
    return state == STOPPING and 'cancelled' or 'ok'
  end
  local is_worked = WORKED[action] and (state == LEASED or action == 'ack' or action == 'finish')
  local t = end_lease(call, id, name, began_at, math.min(call.now, until_ms), is_worked)
  if state == STOPPING and action ~= 'ack' and action ~= 'finish' then
    local is_reaped = action == 'reap'
    forget(call, t, id, 'cancelled', is_reaped and 0 or attempt, is_reaped and 0 or lease)
  else
    actions[action](call, t, id, attempt, lease, ...)
  end
  return 'ok'
end

-- settle(keys, argv): end or extend leases, each fenced by (id, lease).
--   keys  1 prefix
--   argv  1 now  2 dice  then per lease (at most 500): action, id, lease, and
--         for finish: result; for nack: delay_ms (may be empty), error; for reject: error
--   out   per lease: "ok" | "gone" (settled already by this owner, or long forgotten: not an error)
--         | "stale" (the lease was lost: another one is or was given)
--         | "cancelled" (extended, but the task was cancelled: its owner shall stop)
--   flags allow-oom
function verbs.settle(keys, args)
  local call, outcomes, ids, starts, at = open(keys, args), {}, {}, {}, 3
  while at <= #args do
    local action, n = args[at], #ids + 1
    if not ARGUMENTS[action] then refuse('bad_request', 'action') end
    ids[n], starts[n], at = args[at + 1], at, at + ARGUMENTS[action]
    if at > #args + 1 then refuse('bad_request', 'settlements') end
    if action == 'nack' then
      local delay = args[at - 2] == '' and 0 or tonumber(args[at - 2])
      if not (delay and delay >= 0 and delay <= HORIZON_MS) then refuse('bad_request', 'delay_ms') end
    end
  end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'settlements') end
  read_runs(call, ids)
  read_extras(call, ids)
  local changed = false
  for n = 1, #ids do
    local first = starts[n]
    local number = tonumber(args[first + 2]) or -1
    outcomes[n] = settle_one(call, args[first], ids[n], number, call.now, args[first + 3], args[first + 4])
    changed = changed or outcomes[n] == 'ok' or outcomes[n] == 'cancelled'
  end
  if changed then finish_batches(call) end
  flush(call)
  if changed then close(call) end
  return outcomes
end
