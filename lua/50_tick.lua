-- The verb `tick`: what time does to tasks. Any server may call it at any time; each duty is bounded.

local TENANTS_PER_TICK = 50

-- Moves due tasks to their tenants' ready lists. Each due tenant gets an equal part of the limit, and one that has
-- more due tasks goes behind the other due tenants: a million tasks due at midnight delay nobody else's.
local function promote(call, limit)
  local tenants = redis.call('ZRANGE', key(call, 'due'), '-inf', call.now, 'BYSCORE', 'LIMIT', 0, TENANTS_PER_TICK)
  if #tenants == 0 then return 0 end
  read_tenants(call, tenants)
  local budget, moved = math.max(1, math.floor(limit / #tenants)), 0
  for _, name in ipairs(tenants) do
    if moved >= limit then break end
    local delayed, t = key(call, 'delayed:' .. name), touch(call, name)
    local ids = redis.call('ZRANGE', delayed, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, budget)
    if #ids > 0 then
      redis.call('ZREM', delayed, unpack(ids))
      t.delayed, call.queue.delayed = t.delayed - #ids, call.queue.delayed - #ids
      put_ready(call, t, ids)
      moved = moved + #ids
    end
    local next_due = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
    if next_due[2] then
      redis.call('ZADD', key(call, 'due'), math.max(tonumber(next_due[2]), call.now), name)
    else
      redis.call('ZREM', key(call, 'due'), name)
    end
  end
  return moved
end

-- Buries waiting tasks whose window has closed.
local function expire(call, limit)
  local ids = redis.call('ZRANGE', key(call, 'expiring'), '-inf', call.now, 'BYSCORE', 'LIMIT', 0, limit)
  if #ids == 0 then return 0 end
  redis.call('ZREM', key(call, 'expiring'), unpack(ids))
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local runs = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  for i, id in ipairs(ids) do
    local t = touch(call, (read_header(records[i])))
    take_out(call, t, id)
    t.bytes = t.bytes - payload_bytes(t, #records[i])
    bury(call, t, id, runs[i] and load_run(runs[i]) or {attempt = 0, lease = 0, error = ''}, EXPIRED)
  end
  return #ids
end

-- Takes back leases whose deadline has passed. They are charged up to their last renewal: nobody worked since then.
local function reap(call, limit)
  local due = redis.call('ZRANGE', key(call, 'leases'), '-inf', call.now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  if #ids == 0 then return 0 end
  read_runs(call, ids)
  for i = #ids, 1, -1 do  -- the oldest ends up at the head
    settle_one(call, 'reap', ids[i], nil, tonumber(due[2 * i]) - call.queue.lease_ms)
  end
  return #ids
end

-- After the queue's time went back, leases that were given before that end as if they had been renewed now.
local function pull_in_leases(call, limit)
  local q = call.queue
  if q.anchored == 0 then return end
  local latest, deadlines = call.now + q.lease_ms, {}
  for _, id in ipairs(redis.call('ZRANGE', key(call, 'leases'), '(' .. text(latest), '+inf', 'BYSCORE',
      'LIMIT', 0, limit)) do
    deadlines[#deadlines + 1], deadlines[#deadlines + 2] = latest, id
  end
  write('ZADD', key(call, 'leases'), deadlines)
  if #deadlines < 2 * limit then q.anchored = 0 end
  call.is_changed = true
end

local function drop_dead(call, ids)
  if #ids == 0 then return 0 end
  for i, death in ipairs(redis.call('HMGET', key(call, 'dead'), unpack(ids))) do
    drop_letter(call, ids[i], death)
  end
  return #ids
end

-- Forgets batches that have been complete for long enough.
local function trim_batches(call, limit)
  local last = call.now - BATCH_KEEP_MS
  local ids = redis.call('ZRANGE', key(call, 'completed'), '-inf', last, 'BYSCORE', 'LIMIT', 0, limit)
  if #ids == 0 then return end
  redis.call('HDEL', key(call, 'batches'), unpack(ids))
  redis.call('ZREM', key(call, 'completed'), unpack(ids))
  for _, id in ipairs(ids) do call.batches[id] = nil end
end

-- The oldest dead letters of the tenant that has most of them: up to `limit`, and no more than its lead over the next.
local function oldest_of_most(call, limit)
  local most = redis.call('ZRANGE', key(call, 'graveyards'), 0, 1, 'REV', 'WITHSCORES')
  if not most[1] then return most end
  local count = math.max(1, math.min(limit, most[2] - (most[4] or 0)))
  return redis.call('ZRANGE', key(call, 'deaths:' .. most[1]), 0, count - 1)
end

-- Deletes dead letters that are too old; then, while there are too many, those of whoever has most: nobody's flood of
-- dead letters pushes out another's.
local function trim_dead(call, limit)
  local q, deaths = call.queue, key(call, 'deaths')
  local ids = redis.call('ZRANGE', deaths, '-inf', call.now - q.dead_keep_ms, 'BYSCORE', 'LIMIT', 0, limit)
  local trimmed = drop_dead(call, ids)
  while trimmed < limit and q.dead > q.dead_keep do
    local count = drop_dead(call, oldest_of_most(call, math.min(limit - trimmed, q.dead - q.dead_keep)))
    if count == 0 then break end  -- never for ever, whatever the keys hold
    trimmed = trimmed + count
  end
  return trimmed
end

-- When the next tick will find work.
local function next_due(call)
  local earliest = math.huge
  for name, wait in pairs({due = 0, expiring = 0, leases = 0, fires = 0, deaths = call.queue.dead_keep_ms,
    parked = 0, turns = 0, cancelling = 0,
    completed = BATCH_KEEP_MS}) do
    local first = redis.call('ZRANGE', key(call, name), 0, 0, 'WITHSCORES')[2]
    if first then earliest = math.min(earliest, tonumber(first) + wait) end
  end
  if call.queue.dead > call.queue.dead_keep or call.queue.sweeping + call.queue.anchored > 0 then
    earliest = call.now
  end
  return earliest == math.huge and -1 or math.max(earliest, call.now)
end

-- tick(keys, argv): promote due tasks, expire late ones, reap dead leases, trim dead letters and complete batches,
-- cancel what is left of cancelled batches, let in tenants that have tokens again.
--   keys  1 prefix
--   argv  1 now  2 dice  3 limit: tasks per duty (1..500)
--   out   now_ms, next_due_ms (when a tick will next find work; now if this one left some; -1 if nothing waits),
--         ready (tasks), promoted, expired, reaped, trimmed, fires (schedules that are due: see `fire`), turns
--         (windows that are to open or close: see `set_windows`)
--         A tick that finds nothing writes nothing.
--   flags allow-oom
function verbs.tick(keys, args)
  local call, limit = open(keys, args), check_whole(args[3], 'limit', 1, TASKS_PER_CALL)
  local promoted = promote(call, limit)
  local expired, reaped, trimmed = expire(call, limit), reap(call, limit), trim_dead(call, limit)
  limits.unpark(call, limit)
  limits.sweep(call)
  pull_in_leases(call, limit)
  flush(call)  -- what follows reads runs again
  cancel_members(call, limit)
  finish_batches(call)
  trim_batches(call, limit)
  flush(call)
  if #call.touched > 0 or #call.messages > 0 or call.is_changed then close(call) end
  local fires = redis.call('ZCOUNT', key(call, 'fires'), '-inf', call.now)
  local turns = redis.call('ZCOUNT', key(call, 'turns'), '-inf', call.now)
  return {call.now, next_due(call), call.queue.ready, promoted, expired, reaped, trimmed, fires, turns}
end
