-- Tasks and the places they wait in: records, ready lists, delayed sets, dead letters.
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
  return tenant, max_attempts, enqueued_at, start_at, expires_at
end

-- Of a task of tenant t whose record has this size.
local function payload_bytes(t, record_bytes)
  return record_bytes - HEADER_BYTES - #t.name
end

-- Changes the window in a task's record.
local function rewrite_header(call, id, record, start_at, expires_at)
  local name, max_attempts, enqueued_at = read_header(record)
  local header = struct.pack(HEADER_FORMAT, RECORD_VERSION, max_attempts, enqueued_at, start_at, expires_at, #name,
    name)
  redis.call('HSET', key(call, 'tasks'), id, header .. record:sub(#header + 1))
end

local function load_run(packed)
  local attempt, forgiven, max_attempts, state, began_at, expires_at, lease, tenant, worker, error =
    struct.unpack(RUN_FORMAT, packed)
  return {
    attempt = attempt, forgiven = forgiven, max_attempts = max_attempts, state = state, began_at = began_at,
    expires_at = expires_at, lease = lease, tenant = tenant, worker = worker, error = error,
  }
end

local function pack_run(r)
  return struct.pack(RUN_FORMAT, r.attempt, r.forgiven, r.max_attempts, r.state, r.began_at,
    r.expires_at, r.lease, #r.tenant, r.tenant, #r.worker, r.worker, #r.error, r.error)
end

local function is_leased(state)
  return state == LEASED or state == STOPPING
end

-- The sorted set `due` holds each tenant's earliest start, so that the ticker visits tenants, not tasks.
local function put_delayed(call, t, id, start_at)
  redis.call('ZADD', key(call, 'delayed:' .. t.name), start_at, id)
  redis.call('ZADD', key(call, 'due'), 'LT', start_at, t.name)
  t.delayed, call.queue.delayed = t.delayed + 1, call.queue.delayed + 1
end

local function count_ready(call, t, count)
  t.ready, call.queue.ready = t.ready + count, call.queue.ready + count
  call.readied = call.readied or (count > 0 and t.barred == 0)
end

-- ids go to the ends of their lists, or (push = 'LPUSH') to the heads; those without a place in their batch are held.
local function put_ready(call, t, ids, push)
  push = push or 'RPUSH'
  if call.queue.special == 0 then
    count_ready(call, t, #ids)
    redis.call(push, ready_key(call, t, USUAL_PRIORITY), unpack(ids))
    return
  end
  read_extras(call, ids)
  ids = find_places(call, t, ids)
  count_ready(call, t, #ids)
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

-- Deletes a dead letter; its tenant is in its packed death.
local function forget_dead(call, id, death)
  local _, _, _, _, name = struct.unpack(DEATH_FORMAT, death)
  local t = touch(call, name)
  redis.call('HDEL', key(call, 'dead'), id)
  redis.call('ZREM', key(call, 'deaths'), id)
  redis.call('ZREM', key(call, 'deaths:' .. name), id)
  t.dead, call.queue.dead = t.dead - 1, call.queue.dead - 1
  if t.dead > 0 then
    redis.call('ZADD', key(call, 'graveyards'), t.dead, name)
  else
    redis.call('ZREM', key(call, 'graveyards'), name)
  end
  return t
end

-- Deletes a dead letter and its task.
local function drop_letter(call, id, death)
  local t = forget_dead(call, id, death)
  redis.call('HDEL', key(call, 'tasks'), id)
  drop_extras(call, t.name, id)
end

-- Deletes the oldest dead letters of a tenant that has more than its limit, two at most.
local function make_room_for_dead(call, t)
  if t.limited == 0 and call.queue.limited == 0 then return end
  local limit = limits.of(call, t).dead
  if limit == 0 or t.dead <= limit then return end
  for _, id in ipairs(redis.call('ZRANGE', key(call, 'deaths:' .. t.name), 0, math.min(2, t.dead - limit) - 1)) do
    drop_letter(call, id, redis.call('HGET', key(call, 'dead'), id))
  end
end

local function put_dead(call, t, id, reason, run)
  local attempts, message = run.attempt, run.error
  redis.call('HSET', key(call, 'dead'), id,
    struct.pack(DEATH_FORMAT, reason, attempts, run.lease, call.now, #t.name, t.name, #message, message))
  redis.call('ZADD', key(call, 'deaths'), call.now, id)
  redis.call('ZADD', key(call, 'deaths:' .. t.name), call.now, id)
  t.dead, call.queue.dead, call.queue.buried = t.dead + 1, call.queue.dead + 1, call.queue.buried + 1
  redis.call('ZADD', key(call, 'graveyards'), t.dead, t.name)
  if reason == EXPIRED then call.queue.expired = call.queue.expired + 1 end
  free_key(call, t.name, id)
  note_end(call, id, 'dead')
  tell_of(call, t, id, reason == EXPIRED and 'expired' or 'dead', attempts, REASONS[reason])
  make_room_for_dead(call, t)
end

-- For a tenant with nothing ready: what its lists still hold is void.
local function drop_lists(call, t)
  if t.voids == 0 and t.levels == 0 then return end
  local lists = {}
  for _, level in ipairs(levels_of(call, t)) do lists[#lists + 1] = ready_key(call, t, level) end
  redis.call('UNLINK', key(call, 'void:' .. t.name), key(call, 'levels:' .. t.name), unpack(lists))
  t.voids, t.levels = 0, 0
end

-- Whether the entry that comes next in a list is void; then it is none any more.
local function pass_void(call, t, id, level)
  if t.voids == 0 then return false end
  local void, field = key(call, 'void:' .. t.name), void_field(id, level)
  if redis.call('HEXISTS', void, field) == 0 then return false end
  if redis.call('HINCRBY', void, field, -1) == 0 then redis.call('HDEL', void, field) end
  t.voids = t.voids - 1
  return true
end

-- Two voids go for each one that comes, once they are at the head: a list that nobody pops does not grow for ever.
local function void_entry(call, t, id)
  local level = extras_of(call, id).priority
  redis.call('HINCRBY', key(call, 'void:' .. t.name), void_field(id, level), 1)
  t.voids = t.voids + 1
  count_ready(call, t, -1)
  if t.ready == 0 then return drop_lists(call, t) end
  local list = ready_key(call, t, level)
  for _ = 1, 2 do
    local first = redis.call('LINDEX', list, 0)
    if not first then return close_level(call, t, level) end
    if not pass_void(call, t, first, level) then return end
    redis.call('LPOP', list)
  end
end

-- Takes a waiting task out of the place where it waits.
local function take_out(call, t, id)
  if redis.call('ZREM', key(call, 'delayed:' .. t.name), id) == 1 then
    t.delayed, call.queue.delayed = t.delayed - 1, call.queue.delayed - 1
  elseif not take_out_held(call, t, id) then
    void_entry(call, t, id)
    give_place_back(call, id)
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
