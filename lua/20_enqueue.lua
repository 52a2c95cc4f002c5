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

-- ids go to the end of the tenant's list, or (push = 'LPUSH') to its head.
local function put_ready(call, t, ids, push)
  redis.call(push or 'RPUSH', key(call, 'ready:' .. t.name), unpack(ids))
  count_ready(call, t, #ids)
end

local function put_dead(call, t, id, reason, attempts, message)
  redis.call('HSET', key(call, 'dead'), id,
    struct.pack(DEATH_FORMAT, reason, attempts, call.now, #t.name, t.name, #message, message))
  redis.call('ZADD', key(call, 'deaths'), call.now, id)
  t.dead, call.queue.dead, call.queue.buried = t.dead + 1, call.queue.dead + 1, call.queue.buried + 1
  if reason == EXPIRED then call.queue.expired = call.queue.expired + 1 end
end

-- For a tenant with nothing ready: what its list still holds is void.
local function drop_voids(call, t)
  t.voids = 0
  redis.call('UNLINK', key(call, 'ready:' .. t.name), key(call, 'void:' .. t.name))
end

local function void_entry(call, t, id)
  redis.call('HINCRBY', key(call, 'void:' .. t.name), id, 1)
  t.voids = t.voids + 1
  count_ready(call, t, -1)
  if t.ready == 0 then drop_voids(call, t) end
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

-- options: delay, start_at, expires_in, expires_at (f64 ms, 0 = none), max_attempts (u16, 0 = the queue's); or empty.
local function read_options(call, options)
  if options ~= '' and #options ~= struct.size(OPTIONS_FORMAT) then refuse('bad_request', 'options') end
  local start_at, expires_at, max_attempts = 0, 0, call.queue.max_attempts
  if options ~= '' then
    local delay, expires_in, given
    delay, start_at, expires_in, expires_at, given = struct.unpack(OPTIONS_FORMAT, options)
    for _, ms in ipairs({delay, start_at, expires_in, expires_at}) do
      if not (ms >= 0 and ms <= HORIZON_MS) then refuse('bad_request', 'options') end
    end
    if delay > 0 then start_at = call.now + delay end
    if expires_in > 0 then expires_at = call.now + expires_in end
    if given > 0 then max_attempts = given end
  end
  return start_at, expires_at, max_attempts
end

-- Stores tasks of one tenant: parts[first], ... are id, options, payload of each. Returns outcomes, and how many it
-- stored: the call must then be closed.
local function store_tasks(call, name, parts, first)
  local ids, outcomes = {}, {}
  for i = first, #parts, 3 do ids[#ids + 1] = parts[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'tasks') end
  local known, records, ready, delayed, expiring = known_ids(call, ids), {}, {}, {}, {}
  for n, id in ipairs(ids) do
    local start_at, expires_at, max_attempts = read_options(call, parts[first - 2 + 3 * n])
    if known[id] then
      outcomes[n] = 'duplicate'
    elseif expires_at > 0 and expires_at <= math.max(start_at, call.now) then
      outcomes[n] = 'expired'
    else
      outcomes[n], known[id] = 'ok', true
      records[#records + 1] = id
      records[#records + 1] = struct.pack(HEADER_FORMAT, RECORD_VERSION, max_attempts, call.now, start_at, expires_at,
        #name, name) .. parts[first - 1 + 3 * n]
      if start_at > call.now then delayed[#delayed + 1] = {id, start_at} else ready[#ready + 1] = id end
      if expires_at > 0 then
        expiring[#expiring + 1] = expires_at
        expiring[#expiring + 1] = id
      end
    end
  end
  if #records == 0 then return outcomes, 0 end
  local t = touch(call, name)
  redis.call('HSET', key(call, 'tasks'), unpack(records))
  if #ready > 0 then put_ready(call, t, ready) end
  for _, task in ipairs(delayed) do put_delayed(call, t, task[1], task[2]) end
  if #expiring > 0 then redis.call('ZADD', key(call, 'expiring'), unpack(expiring)) end
  call.queue.enqueued = call.queue.enqueued + #records / 2
  return outcomes, #records / 2
end

-- enqueue(keys, argv): store tasks of one tenant; a task whose id is known is left as it is.
--   keys  1 prefix
--   argv  1 now  2 dice  3 tenant  then per task (at most 500): id, options (packed, see read_options), payload
--   out   per task: "ok" | "duplicate" (id waiting, leased, dead or done not long ago) | "expired" (it would expire
--         before it could start: not stored)
--   flags none: refused as a whole when the store is full
local function enqueue(keys, args)
  local call = open(keys, args)
  check_name(args[3], 'tenant')
  local outcomes, stored = store_tasks(call, args[3], args, 4)
  if stored > 0 then close(call) end
  return outcomes
end
