-- New tasks: what they ask for, which of them are taken, and how they are stored.

local OPTIONS_BYTES = 54  -- of OPTIONS_FORMAT, at least
local RETRY_MS = {1000, 60000}  -- who is told to come again comes after so long, at least and at most

-- options: delay, start_at, expires_in, expires_at (f64 ms, 0 = none), max_attempts (u16, 0 = the queue's), priority,
-- dedupe window (f64 ms, 0 = until the task ends), how long the result is kept (f64 ms, 0 = not at all), whether what
-- becomes of it is told, dedupe key and batch (empty: none); or nothing at all.
local function read_options(call, options)
  if options == '' then return 0, 0, call.queue.max_attempts, PLAIN, 0 end
  if #options < OPTIONS_BYTES then refuse('bad_request', 'options') end
  local delay, start_at, expires_in, expires_at, max_attempts, priority, window, result_ttl, events, dedupe_key, batch =
    struct.unpack(OPTIONS_FORMAT, options)
  for _, ms in ipairs({delay, start_at, expires_in, expires_at, window, result_ttl}) do
    if not (ms >= 0 and ms <= HORIZON_MS) then refuse('bad_request', 'options') end
  end
  if priority > MAX_PRIORITY then refuse('bad_request', 'priority') end
  if delay > 0 then start_at = call.now + delay end
  if expires_in > 0 then expires_at = call.now + expires_in end
  if max_attempts == 0 then max_attempts = call.queue.max_attempts end
  if priority == USUAL_PRIORITY and dedupe_key == '' and batch == '' and result_ttl == 0 and events == 0 then
    return start_at, expires_at, max_attempts, PLAIN, 0
  end
  local extras = {
    priority = priority, result_ttl = result_ttl, opened_at = 0, events = events, key = dedupe_key, batch = batch,
  }
  return start_at, expires_at, max_attempts, extras, window
end

-- A task can be added to an open batch of its own tenant.
local function check_batch(call, name, extras)
  if extras.batch == '' then return end
  local b = batch(call, extras.batch)
  if not b or b.tenant ~= name then refuse('not_found', 'batch') end
  if b.state ~= OPENED then refuse('batch_closed', 'batch') end
  extras.opened_at = b.created_at
end

-- Tasks of one call that will be stored; nothing is written before all are known.
local function new_arrivals(name)
  return {name = name, records = {}, ready = {}, delayed = {}, expiring = {}, special = {}, holders = {},
    bytes = 0}
end

-- The id of the task that holds a new task's dedupe key, if any.
local function first_of(call, arrivals, extras)
  if extras.key == '' then return nil end
  return arrivals.holders[extras.key] or holder_of(call, arrivals.name, extras.key)
end

-- Decides on one task; returns its outcome.
local function admit(call, arrivals, id, payload, start_at, expires_at, max_attempts, extras, window)
  if expires_at > 0 and expires_at <= math.max(start_at, call.now) then return 'expired' end
  local first, name = first_of(call, arrivals, extras), arrivals.name
  if first then return 'duplicate ' .. first end
  local n = #arrivals.records
  arrivals.records[n + 1] = id
  arrivals.records[n + 2] = struct.pack(HEADER_FORMAT, RECORD_VERSION, max_attempts, call.now, start_at, expires_at,
    #name, name) .. payload
  arrivals.bytes = arrivals.bytes + #payload
  if start_at > call.now then
    table.insert(arrivals.delayed, {id, start_at})
  else
    arrivals.ready[#arrivals.ready + 1] = id
  end
  if expires_at > 0 then
    table.insert(arrivals.expiring, expires_at)
    table.insert(arrivals.expiring, id)
  end
  if extras ~= PLAIN then
    table.insert(arrivals.special, {id, extras, window})
    if extras.key ~= '' then arrivals.holders[extras.key] = id end
  end
  return 'ok'
end

-- Which limit new tasks would exceed, and in how many ms there may be room; nil if there is.
local function exceeded(call, arrivals)
  local t = tenant(call, arrivals.name)
  if t.limited == 0 and call.queue.limited == 0 then return nil end
  local l, waiting = limits.of(call, t), t.ready + t.held + t.delayed
  local task_ms = math.max(t.estimate / math.max(t.leased, 1), l.rate > 0 and 1000 / l.rate or 1)
  local excess = waiting + #arrivals.ready + #arrivals.delayed - l.queued
  if l.queued > 0 and excess > 0 then return 'queued', excess * task_ms end
  excess = t.bytes + arrivals.bytes - l.queued_bytes
  if l.queued_bytes > 0 and excess > 0 then return 'queued_bytes', excess / math.max(t.bytes, 1) * waiting * task_ms end
  excess = t.delayed + #arrivals.delayed - l.delayed
  if l.delayed > 0 and #arrivals.delayed > 0 and excess > 0 then
    local first = redis.call('ZRANGE', key(call, 'delayed:' .. t.name), 0, 0, 'WITHSCORES')[2]
    return 'delayed', (first or call.now) - call.now
  end
end

local function check_quotas(call, arrivals)
  local limit, wait_ms = exceeded(call, arrivals)
  if limit then
    refuse('quota_exceeded', string.format('%s %.0f', limit, math.max(RETRY_MS[1], math.min(RETRY_MS[2], wait_ms))))
  end
end

local function store_arrivals(call, arrivals)
  local t = touch(call, arrivals.name)
  write('HSET', key(call, 'tasks'), arrivals.records)
  t.bytes = t.bytes + arrivals.bytes
  for _, task in ipairs(arrivals.special) do
    local id, extras, window = unpack(task)
    add_extras(call, id, extras)
    if extras.key ~= '' then hold_key(call, t.name, id, extras.key, window) end
    if extras.batch ~= '' then
      local b = batch(call, extras.batch)
      b.total = b.total + 1
      add_member(call, b, id)
    end
  end
  if #arrivals.ready > 0 then put_ready(call, t, arrivals.ready) end
  for _, task in ipairs(arrivals.delayed) do put_delayed(call, t, task[1], task[2]) end
  write('ZADD', key(call, 'expiring'), arrivals.expiring)
  call.queue.enqueued = call.queue.enqueued + #arrivals.records / 2
end
