-- What becomes of tasks before their time: cancelled, or moved to another start.

local function is_leased_run(packed)
  if not packed then return false end
  local _, _, _, state = struct.unpack(LEASE_FORMAT, packed)
  return is_leased(state)
end

-- Calls visit(id, record) for the tasks that are neither done nor dead; out: what it returns per id, "gone" for others.
local function visit_alive(call, ids, visit)
  local outcomes = {}
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local deaths = redis.call('HMGET', key(call, 'dead'), unpack(ids))
  read_runs(call, ids)
  read_extras(call, ids)
  for i, id in ipairs(ids) do
    outcomes[i] = records[i] and not deaths[i] and visit(id, records[i]) or 'gone'
  end
  return outcomes
end

local function each_alive(call, ids, visit)
  local outcomes = visit_alive(call, ids, visit)
  finish(call)
  return outcomes
end

-- Whoever has leased the task is told, through its server, and stays the owner until it says how it ended.
local function stop(call, id)
  local run = load_run(call.runs[id])
  run.state = STOPPING
  set_run(call, id, pack_run(run))
  announce(call, 'stop ' .. id)
end

local function cancel_one(call, id, record)
  local packed = call.runs[id]
  if is_leased_run(packed) then
    stop(call, id)
    return 'running'
  end
  local run, name, _, _, _, expires_at = packed and load_run(packed), read_header(record)
  local t = touch(call, name)
  take_out(call, t, id)
  t.bytes = t.bytes - payload_bytes(t, #record)
  if expires_at > 0 then redis.call('ZREM', key(call, 'expiring'), id) end
  local is_settled = run and run.state == SETTLED
  forget(call, t, id, 'cancelled', is_settled and run.attempt or 0, is_settled and run.lease or 0)
  return 'ok'
end

-- Goes on cancelling the tasks of batches that were cancelled as a whole.
local function cancel_members(call, limit)
  local left = limit
  for _, id in ipairs(redis.call('ZRANGE', key(call, 'cancelling'), 0, limit - 1)) do
    local popped, ids = redis.call('ZPOPMIN', key(call, 'members:' .. id), left), {}
    for i = 1, #popped, 2 do ids[#ids + 1] = popped[i] end
    if #ids < left then redis.call('ZREM', key(call, 'cancelling'), id) end
    if #ids > 0 then visit_alive(call, ids, function(task, record) return cancel_one(call, task, record) end) end
    left = left - #ids
    if left == 0 then break end
  end
end

-- cancel(keys, argv): tasks that wait are forgotten; those that run shall be stopped.
--   keys  1 prefix
--   argv  1 now  2 dice  then ids (at most 500, each once)
--   out   per id "ok" (it will not run) | "running" (its worker is told to stop; what it acks all the same is done)
--         | "gone" (done, dead, cancelled or unknown)
--   flags allow-oom
function verbs.cancel(keys, args)
  local call = open(keys, args)
  return each_alive(call, ids_in(args, 3), function(id, record) return cancel_one(call, id, record) end)
end

-- reschedule(keys, argv): give waiting tasks another start; one that has passed means now.
--   keys  1 prefix
--   argv  1 now  2 dice  3 delay (ms; 0: see 4)  4 start_at (ms)  then ids (at most 500, each once)
--   out   per id "ok" | "running" | "expired" (it would start after its end: nothing changed) | "gone"
--   flags allow-oom
function verbs.reschedule(keys, args)
  local call, delay, start_at = open(keys, args), tonumber(args[3]), tonumber(args[4])
  for _, ms in ipairs({delay or -1, start_at or -1}) do
    if not (ms >= 0 and ms <= HORIZON_MS) then refuse('bad_request', 'start_at') end
  end
  if delay > 0 then start_at = call.now + delay end
  return each_alive(call, ids_in(args, 5), function(id, record)
    if is_leased_run(call.runs[id]) then return 'running' end
    local name, _, _, _, expires_at = read_header(record)
    local t = touch(call, name)
    if expires_at > 0 and expires_at <= math.max(start_at, call.now) then return 'expired' end
    if start_at <= call.now and not redis.call('ZSCORE', key(call, 'delayed:' .. name), id) then return 'ok' end
    take_out(call, t, id)
    rewrite_header(call, id, record, start_at, expires_at)
    if start_at > call.now then put_delayed(call, t, id, start_at) else put_ready(call, t, {id}) end
    return 'ok'
  end)
end
