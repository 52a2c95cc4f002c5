-- Tasks and the places they wait in: records, ready lists, delayed sets, dead letters; and the verb `enqueue`.
--
-- A task is in exactly one of: ready (a list per tenant), delayed (a sorted set per tenant, score start_at_ms), leased
-- (the set `leases` and a run in `runs`), dead (`dead`); or it is done and forgotten but for its id (`done:<window>`).
-- Its record in `tasks` never changes and is dropped when it is done. A run is what changes: it is there from the
-- first lease on, also while the task waits for its next attempt.
--
-- A task that expires inside a ready list cannot be cut out of it in O(1). Its entry stays behind as a *void*, counted
-- in `void:<tenant>` (and all of them in tenant.voids), and whoever pops it passes over it.

local function done_key(call, windows_ago)
  return key(call, 'done:' .. math.floor(call.now / DONE_WINDOW_MS) - windows_ago)
end

-- Of a record: tenant, max_attempts, enqueued_at, start_at, expires_at (ms, 0 = none).
local function read_header(record)
  local version, max_attempts, enqueued_at, start_at, expires_at, tenant = struct.unpack(HEADER_FORMAT, record)
  if version ~= RECORD_VERSION then refuse('bad_request', 'record') end
  return tenant, max_attempts, enqueued_at, start_at, expires_at
end

-- Changes the window in a task's record.
local function rewrite_header(call, id, record, start_at, expires_at)
  local name, max_attempts, enqueued_at = read_header(record)
  local header = struct.pack(HEADER_FORMAT, RECORD_VERSION, max_attempts, enqueued_at, start_at, expires_at, #name,
    name)
  redis.call('HSET', key(call, 'tasks'), id, header .. record:sub(#header + 1))
end

local function load_run(packed)
  local attempt, forgiven, max_attempts, state, epoch, leased_at, cost, weight_sum, expires_at, tenant, worker, error =
    struct.unpack(RUN_FORMAT, packed)
  return {
    attempt = attempt, forgiven = forgiven, max_attempts = max_attempts, state = state, epoch = epoch,
    leased_at = leased_at, cost = cost, weight_sum = weight_sum, expires_at = expires_at, tenant = tenant,
    worker = worker, error = error,
  }
end

local function pack_run(r)
  return struct.pack(RUN_FORMAT, r.attempt, r.forgiven, r.max_attempts, r.state, r.epoch, r.leased_at, r.cost,
    r.weight_sum, r.expires_at, #r.tenant, r.tenant, #r.worker, r.worker, #r.error, r.error)
end

-- The sorted set `due` holds each tenant's earliest start, so that the ticker visits tenants, not tasks.
local function put_delayed(call, t, id, start_at)
  redis.call('ZADD', key(call, 'delayed:' .. t.name), start_at, id)
  redis.call('ZADD', key(call, 'due'), 'LT', start_at, t.name)
  t.delayed, call.queue.delayed = t.delayed + 1, call.queue.delayed + 1
end

local function count_ready(call, t, count)
  t.ready, call.queue.ready = t.ready + count, call.queue.ready + count
  call.readied = call.readied or (count > 0 and t.paused == 0)
end

-- ids go to the ends of their lists, or (push = 'LPUSH') to the heads.
local function put_ready(call, t, ids, push)
  push = push or 'RPUSH'
  count_ready(call, t, #ids)
  if call.queue.special == 0 then
    redis.call(push, ready_key(call, t, USUAL_PRIORITY), unpack(ids))
    return
  end
  read_extras(call, ids)
  local lists = {}
  for _, id in ipairs(ids) do
    local level = extras_of(call, id).priority
    lists[level] = lists[level] or {}
    table.insert(lists[level], id)
  end
  for level, some in pairs(lists) do
    redis.call(push, ready_key(call, t, level), unpack(some))
    open_level(call, t, level)
  end
end

local function put_dead(call, t, id, reason, attempts, message)
  redis.call('HSET', key(call, 'dead'), id,
    struct.pack(DEATH_FORMAT, reason, attempts, call.now, #t.name, t.name, #message, message))
  redis.call('ZADD', key(call, 'deaths'), call.now, id)
  t.dead, call.queue.dead, call.queue.buried = t.dead + 1, call.queue.dead + 1, call.queue.buried + 1
  if reason == EXPIRED then call.queue.expired = call.queue.expired + 1 end
  free_key(call, t.name, id)
end

-- For a tenant with nothing ready: what its lists still hold is void.
local function drop_lists(call, t)
  if t.voids == 0 and t.levels == 0 then return end
  local lists = {}
  for _, level in ipairs(levels_of(call, t)) do lists[#lists + 1] = ready_key(call, t, level) end
  redis.call('UNLINK', key(call, 'void:' .. t.name), key(call, 'levels:' .. t.name), unpack(lists))
  t.voids, t.levels = 0, 0
end

local function void_entry(call, t, id)
  redis.call('HINCRBY', key(call, 'void:' .. t.name), void_field(id, extras_of(call, id).priority), 1)
  t.voids = t.voids + 1
  count_ready(call, t, -1)
  if t.ready == 0 then drop_lists(call, t) end
end

-- Takes a waiting task out of the place where it waits.
local function take_out(call, t, id)
  if redis.call('ZREM', key(call, 'delayed:' .. t.name), id) == 1 then
    t.delayed, call.queue.delayed = t.delayed - 1, call.queue.delayed - 1
  else
    void_entry(call, t, id)
  end
end

-- What enqueue knows of an id already: its record (waiting, leased or dead) or its memory (done not long ago).
local function known_ids(call, ids)
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local recent = redis.call('HMGET', done_key(call, 0), unpack(ids))
  local before = redis.call('HMGET', done_key(call, 1), unpack(ids))
  local known = {}
  for i, id in ipairs(ids) do known[id] = records[i] or recent[i] or before[i] end
  return known
end

-- options: delay, start_at, expires_in, expires_at (f64 ms, 0 = none), max_attempts (u16, 0 = the queue's), priority,
-- dedupe window (f64 ms, 0 = until the task ends) and dedupe key (empty: none); or nothing at all.
local function read_options(call, options)
  if options == '' then return 0, 0, call.queue.max_attempts, PLAIN, 0 end
  if #options < 44 then refuse('bad_request', 'options') end
  local delay, start_at, expires_in, expires_at, max_attempts, priority, window, dedupe_key =
    struct.unpack(OPTIONS_FORMAT, options)
  for _, ms in ipairs({delay, start_at, expires_in, expires_at, window}) do
    if not (ms >= 0 and ms <= HORIZON_MS) then refuse('bad_request', 'options') end
  end
  if priority > MAX_PRIORITY then refuse('bad_request', 'priority') end
  if delay > 0 then start_at = call.now + delay end
  if expires_in > 0 then expires_at = call.now + expires_in end
  if max_attempts == 0 then max_attempts = call.queue.max_attempts end
  if priority == USUAL_PRIORITY and dedupe_key == '' then return start_at, expires_at, max_attempts, PLAIN, 0 end
  return start_at, expires_at, max_attempts, {priority = priority, key = dedupe_key}, window
end

-- Tasks of one call that will be stored; nothing is written before all are known.
local function new_arrivals(name)
  return {name = name, records = {}, ready = {}, delayed = {}, expiring = {}, special = {}, holders = {}}
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

local function store_arrivals(call, arrivals)
  local t = touch(call, arrivals.name)
  write('HSET', key(call, 'tasks'), arrivals.records)
  for _, task in ipairs(arrivals.special) do
    local id, extras, window = unpack(task)
    add_extras(call, id, extras)
    if extras.key ~= '' then hold_key(call, t.name, id, extras.key, window) end
  end
  if #arrivals.ready > 0 then put_ready(call, t, arrivals.ready) end
  for _, task in ipairs(arrivals.delayed) do put_delayed(call, t, task[1], task[2]) end
  write('ZADD', key(call, 'expiring'), arrivals.expiring)
  call.queue.enqueued = call.queue.enqueued + #arrivals.records / 2
end

-- enqueue(keys, argv): store tasks of one tenant; a task whose id is known is left as it is.
--   keys  1 prefix
--   argv  1 now  2 dice  3 tenant  then per task (at most 500): id, options (packed, see read_options), payload
--   out   per task: "ok" | "duplicate" (id waiting, leased, dead or done not long ago)
--         | "duplicate <id>" (another task holds its dedupe key: not stored)
--         | "expired" (it would expire before it could start: not stored)
--   flags none: refused as a whole when the store is full
local function enqueue(keys, args)
  local call = open(keys, args)
  local ids, outcomes = {}, {}
  check_name(args[3], 'tenant')
  for i = 4, #args, 3 do ids[#ids + 1] = args[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'tasks') end
  local known, arrivals = known_ids(call, ids), new_arrivals(args[3])
  for n, id in ipairs(ids) do
    local start_at, expires_at, max_attempts, extras, window = read_options(call, args[2 + 3 * n])
    outcomes[n] = known[id] and 'duplicate'
      or admit(call, arrivals, id, args[3 + 3 * n], start_at, expires_at, max_attempts, extras, window)
    if outcomes[n] == 'ok' then known[id] = true end
  end
  if #arrivals.records == 0 then return outcomes end
  store_arrivals(call, arrivals)
  close(call)
  return outcomes
end
