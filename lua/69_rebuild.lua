-- The steps of a repair (68_repair.lua), in order; each does a page and returns the next cursor, nil at its end.
--
-- A tenant's tasks are not put into their places as they are found, but first into `repair:tasks:<tenant>`, in the
-- order in which they were enqueued; leased ones come before all others, since they have the slots of their batches.
do

local PAGE, LONG_PAGE, KEYS = 100, 4, 500  -- elements of a page; of those that may be long; keys that are looked at
local DERIVED = {  -- the kinds of keys that are dropped: what stands before the first colon in their names
  ready = true, priorities = true, tombstone = true, group = true, turns = true, class = true, wake = true, idle = true,
  sweep = true, parked = true, due = true, expiring = true, leases = true, extended = true, deaths = true,
  dead_counts = true, pending = true, members = true, completed = true, done = true, links = true, outbox_due = true,
  repair = true,
}

-- A page of a hash: its fields and values by turns, the next cursor, and the fields alone.
local function scan(call, name, cursor, count)
  local page, fields = redis.call('HSCAN', key(call, name), cursor, 'COUNT', count or PAGE), {}
  for i = 1, #page[2], 2 do fields[#fields + 1] = page[2][i] end
  return page[2], page[1] ~= '0' and page[1] or nil, fields
end

local function drop(call, cursor)
  local page = redis.call('SCAN', cursor, 'MATCH', key(call, '*'), 'COUNT', KEYS)
  local beginning, doomed = #key(call, '') + 1, {}
  for _, found in ipairs(page[2]) do
    local name = found:sub(beginning)
    if DERIVED[name:match('^[^:]*')] and name ~= 'repair' then doomed[#doomed + 1] = found end
  end
  if #doomed > 0 then redis.call('UNLINK', unpack(doomed)) end
  return page[1] ~= '0' and page[1] or nil
end

-- An account whose tenant's name is not known any more is found by it again.
local function name_accounts(call, cursor)
  local flat, next_cursor = scan(call, 'accounts', cursor)
  for i = 1, #flat, 2 do
    local t, details = accounts.unpack(call, flat[i], flat[i + 1]), DETAILS.unpack(string.rep('\0', DETAILS.size))
    details.tag = t.tag
    redis.call('HSETNX', key(call, 'tenants'), t.name, DETAILS.pack(details))
    call.queue.numbers = math.max(call.queue.numbers, (struct.unpack('<I', t.tag)))
  end
  return next_cursor
end

-- A tenant counts nothing and stands nowhere; what operators set for it holds.
local function clear_tenant(call, t)
  local d, books, name = accounts.details_of(call, t), accounts.books_of(call, t), t.name
  local hours = redis.call('HGET', key(call, 'opening_hours'), name)
  books.entitled, books.bytes = seats.entitled_to(call, t), 0
  t.starts, t.leased, t.ready, t.slot, t.class, t.standing, t.is_on_wake_list = 0, 0, 0, OUT, 0, 0, 0
  d.pending, d.delayed, d.dead, d.links, d.tombstones, d.grouped, d.priorities = 0, 0, 0, 0, 0, 0, 0
  d.limited = redis.call('HEXISTS', key(call, 'limits'), name)
  limits.block(d, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
  if bit.band(d.blocked, BLOCKED_RATE) ~= 0 then limits.meter(call, t) end
end

-- That a tenant has something to be put into its place.
local function await(call, name)
  redis.call('ZADD', key(call, 'repair:tenants'), 0, name)
end

local function clear_tenants(call, cursor)
  local flat, next_cursor = scan(call, 'tenants', cursor)
  for i = 1, #flat, 2 do
    local t = accounts.touch(call, accounts.named(call, flat[i], flat[i + 1]))
    clear_tenant(call, t)
    if t.loan ~= accounts.NO_LOAN or redis.call('EXISTS', key(call, 'delayed:' .. t.name)) == 1 then
      await(call, t.name)
    end
  end
  return next_cursor
end

-- Takes fields out of a hash that are of no task, or of none that is to have them.
local function prune(call, name, cursor, may_have)
  local _, next_cursor, ids = scan(call, name, cursor)
  local found, deaths, wrong = {}, {}, {}
  if #ids > 0 then found, deaths = records.of(call, ids), redis.call('HMGET', key(call, 'dead'), unpack(ids)) end
  for i, id in ipairs(ids) do
    if not records.is_task(found[i]) or not may_have(records.read(found[i]), deaths[i]) then wrong[#wrong + 1] = id end
  end
  write('HDEL', key(call, name), wrong)
  return next_cursor
end

local function prune_dead(call, cursor) return prune(call, 'dead', cursor, function() return true end) end

local function prune_runs(call, cursor)
  return prune(call, 'runs', cursor, function(_, death) return not death end)
end

local function prune_options(call, cursor)
  local next_cursor = prune(call, 'task_options', cursor, function(header)
    return header.features % 2 == HAS_OPTIONS
  end)
  if not next_cursor then call.queue.tasks_with_options = redis.call('HLEN', key(call, 'task_options')) end
  return next_cursor
end

-- Bundles have no tasks, but keep the names of their claims.
local function empty_bundles(call, cursor)
  local flat, next_cursor = scan(call, 'bundles', cursor)
  for i = 1, #flat, 2 do
    flat[i + 1] = BUNDLE.pack({left = 0, together = 0, claim = BUNDLE.unpack(flat[i + 1]).claim, ids = ''})
  end
  write('HSET', key(call, 'bundles'), flat)
  return next_cursor
end

local function name_bundles(call, cursor)
  local flat, next_cursor = scan(call, 'claims', cursor)
  for i = 1, #flat, 2 do
    redis.call('HSETNX', key(call, 'bundles'), flat[i + 1],
      BUNDLE.pack({left = 0, together = 0, claim = flat[i], ids = ''}))
  end
  return next_cursor
end

local function add_bytes(call, name, bytes)
  accounts.add_bytes(call, accounts.touch_named(call, name), bytes)
end

local function write_batches(call)
  local fields = {}
  for id, b in pairs(call.batches or {}) do
    if b then fields[#fields + 1], fields[#fields + 2] = id, BATCH.pack(b) end
  end
  write('HSET', key(call, 'batches'), fields)
end

local function clear_batches(call, cursor)
  local _, next_cursor, ids = scan(call, 'batches', cursor, LONG_PAGE)
  for _, id in ipairs(ids) do
    local b = batches.find(call, id)
    b.running, b.admitted, b.total = 0, 0, b.done + b.dead + b.cancelled
    add_bytes(call, b.tenant, batches.bytes_of(b))
    if b.state == COMPLETE then redis.call('ZADD', key(call, 'completed'), b.completed_at, id) end
  end
  write_batches(call)
  return next_cursor
end

local function put_dead(call, t, id, death)
  local d, q = accounts.details_of(call, t), call.queue
  redis.call('ZADD', key(call, 'deaths'), death.died_at, id)
  redis.call('ZADD', key(call, 'deaths:' .. t.name), death.died_at, id)
  d.dead, q.dead, q.last_lease = d.dead + 1, q.dead + 1, math.max(q.last_lease, death.lease)
  redis.call('ZADD', key(call, 'dead_counts'), d.dead, t.name)
end

local function put_marks(call, ids)
  local q, minute = call.queue, records.minute(call)
  q.minute, q.remembered = math.min(q.minute, minute), q.remembered + #ids
  write('RPUSH', key(call, 'done:' .. minute), ids)
end

-- Notes a task that is not dead for its tenant's turn.
local function put_aside(call, t, id, header, run)
  local is_leased = run and leases.is_leased(LEASE.unpack(run).state)
  redis.call('ZADD', key(call, 'repair:tasks:' .. t.name), is_leased and '-inf' or text(header.enqueued_at), id)
  await(call, t.name)
end

local function find_tasks(call, cursor)
  local flat, next_cursor, ids = scan(call, 'tasks', cursor)
  if #ids == 0 then return next_cursor end
  local deaths, marks = redis.call('HMGET', key(call, 'dead'), unpack(ids)), {}
  local runs = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  for i, id in ipairs(ids) do
    if records.is_task(flat[2 * i]) then
      local header, bytes = records.read(flat[2 * i])
      local t = accounts.touch_named(call, header.tenant)
      accounts.add_bytes(call, t, bytes)
      if deaths[i] then put_dead(call, t, id, DEATH.unpack(deaths[i])) else put_aside(call, t, id, header, runs[i]) end
    else
      marks[#marks + 1] = id
    end
  end
  put_marks(call, marks)
  return next_cursor
end

-- The bytes of results and dedupe keys; those of nobody go.
local function add_ends(call, cursor)
  local page, unknown = redis.call('ZSCAN', key(call, 'ends'), cursor, 'COUNT', PAGE), {}
  for i = 1, #page[2], 2 do
    local member = page[2][i]
    local t = accounts.at(call, member:sub(2, 5))
    if t then
      accounts.add_bytes(call, accounts.touch(call, t), (struct.unpack('<I', member, 6)))
    else
      unknown[#unknown + 1] = member
    end
  end
  write('ZREM', key(call, 'ends'), unknown)
  return page[1] ~= '0' and page[1] or nil
end

local function add_templates(call, cursor)
  local flat, next_cursor = scan(call, 'templates', cursor, LONG_PAGE)
  for i = 1, #flat, 2 do add_bytes(call, flat[i]:match('^[^/]*'), KEPT_BYTES + #flat[i + 1]) end
  return next_cursor
end

-- A record of the outbox is a dead letter's address, or is to be delivered: now.
local function add_links(call, cursor)
  local flat, next_cursor = scan(call, 'outbox', cursor, LONG_PAGE)
  for i = 1, #flat, 2 do
    local name, record = flat[i], OUTBOX.unpack(flat[i + 1])
    add_bytes(call, record.tenant, links.bytes_of(record))
    if redis.call('HEXISTS', key(call, 'dead'), name) == 0 then
      redis.call('ZADD', links.of(call, record.tenant), call.now, name)
      redis.call('ZADD', key(call, 'outbox_due'), call.now, record.tenant)
      links.count(call, accounts.named(call, record.tenant), 1)
    end
  end
  return next_cursor
end

-- A record says no more that its task asks for more, where nothing is known of that.
local function mend_features(call, id, header, record)
  if header.features % 2 == 0 or task_options.of(call, id) ~= PLAIN then return end
  local _, position = HEADER.unpack(record)
  header.features = header.features - HAS_OPTIONS
  redis.call('HSET', key(call, 'tasks'), id, HEADER.pack(header) .. record:sub(position))
end

-- A run says of its task what the record says, and has no deadline of its own.
local function mend_run(call, t, id, run, header, bytes)
  run.tag, run.features, run.bytes, run.is_extended = t.tag, header.features, bytes + #run.made, 0
  call.queue.last_lease = math.max(call.queue.last_lease, run.lease)
  accounts.add_bytes(call, t, #run.made)
  leases.set_run(call, id, run)
end

local function put_leased(call, t, id, run)
  local q, b = call.queue, batches.of_task(call, id)
  t.leased, t.starts, q.leased = t.leased + 1, t.starts + math.max(run.began_at, q.epoch_at), q.leased + 1
  if b then b.admitted, b.running = b.admitted + 1, b.running + 1 end
  if t.loan ~= accounts.NO_LOAN then
    if t.leased == 1 then q.loans = q.loans + 1 else reserve.end_loan(call, t) end
  end
  local bundle = leases.bundle(call, run.lease) or {left = 0, together = 0, claim = '', ids = ''}
  bundle.ids = bundle.ids == '' and id or bundle.ids .. '\n' .. id
  bundle.left, bundle.together, bundle.is_changed = bundle.left + 1, bundle.together + 1, true
  call.bundles[run.lease] = bundle
  redis.call('ZADD', key(call, 'leases'), 'GT', text(call.now + run.lasts), leases.field(run.lease))
end

-- Puts a task that waits for its start there; the sets of those are replaced when the tenant's are all known.
local function put_delayed(call, t, id, start_at)
  redis.call('ZADD', key(call, 'repair:delayed:' .. t.name), start_at, id)
  redis.call('ZADD', key(call, 'due'), 'LT', start_at, t.name)
  places.count_delayed(call, t, 1)
end

-- When a waiting task starts, if that is known and not over. The time of a retry stands nowhere else.
local function start_of(call, at, header, run)
  return at or not run and header.start_at > call.now and text(header.start_at)
end

-- Puts tasks of a tenant into their places.
local function put_tasks(call, t, ids)
  local found, ready = records.of(call, ids), {}
  local starts = redis.call('ZMSCORE', key(call, 'delayed:' .. t.name), unpack(ids))
  leases.read_runs(call, ids)
  for i, id in ipairs(ids) do
    local header, bytes = records.read(found[i])
    local run, b = leases.run_of(call, id), batches.of_task(call, id)
    mend_features(call, id, header, found[i])
    if run then mend_run(call, t, id, run, header, bytes) end
    if b then
      b.total = b.total + 1
      batches.add_member(call, b, id)
    end
    if run and leases.is_leased(run.state) then
      put_leased(call, t, id, run)
    else
      if header.expires_at > 0 then redis.call('ZADD', key(call, 'expiring'), text(header.expires_at), id) end
      local start_at = start_of(call, starts[i], header, run)
      if start_at then put_delayed(call, t, id, start_at) else ready[#ready + 1] = id end
    end
  end
  if #ready > 0 then places.put_ready(call, t, ready) end
end

-- All tasks of a tenant have their places.
local function end_tenant(call, t)
  local delayed, copy = key(call, 'delayed:' .. t.name), key(call, 'repair:delayed:' .. t.name)
  if t.leased == 0 then t.loan = accounts.NO_LOAN end
  redis.call('UNLINK', delayed)  -- first: what RENAME replaces may be freed at once
  if redis.call('EXISTS', copy) == 1 then redis.call('RENAME', copy, delayed) end
  redis.call('ZREM', key(call, 'repair:tenants'), t.name)
end

-- Goes on with the first tenants that have tasks without a place.
local function put_all(call)
  local left = PAGE
  for _, name in ipairs(redis.call('ZRANGE', key(call, 'repair:tenants'), 0, PAGE - 1)) do
    local aside, t = key(call, 'repair:tasks:' .. name), accounts.touch_named(call, name)
    local ids = batches.cut(call, redis.call('ZRANGE', aside, 0, left - 1))
    if #ids > 0 then
      put_tasks(call, t, ids)
      redis.call('ZREM', aside, unpack(ids))
    end
    if redis.call('EXISTS', aside) == 1 then break end
    end_tenant(call, t)
    left = left - #ids - 1
    if left <= 0 then break end
  end
  write_batches(call)
  leases.write(call)
  return redis.call('EXISTS', key(call, 'repair:tenants')) == 1 and '0' or nil
end

-- Bundles without tasks go. No lease could be extended meanwhile, so each has a whole one from now.
local function put_bundles(call, cursor)
  if cursor == '0' then redis.call('UNLINK', key(call, 'claims')) end
  local flat, next_cursor = scan(call, 'bundles', cursor)
  for i = 1, #flat, 2 do
    local bundle, field = BUNDLE.unpack(flat[i + 1]), flat[i]
    if bundle.left == 0 then
      redis.call('HDEL', key(call, 'bundles'), field)
    else
      redis.call('HSET', key(call, 'claims'), bundle.claim, field)
      redis.call('ZADD', key(call, 'leases'), 'GT', text(call.now + call.queue.lease_ms), field)
    end
  end
  return next_cursor
end

-- Batches whose last task had ended without them are complete.
local function finish_batches(call, cursor)
  local _, next_cursor, ids = scan(call, 'batches', cursor, LONG_PAGE)
  for _, id in ipairs(ids) do batches.find(call, id) end
  batches.finish(call)
  return next_cursor
end

repairs.steps = {  -- name, step(call, cursor)
  {'drop', drop}, {'accounts', name_accounts}, {'tenants', clear_tenants}, {'dead', prune_dead}, {'runs', prune_runs},
  {'task_options', prune_options}, {'bundles', empty_bundles}, {'claims', name_bundles}, {'batches', clear_batches},
  {'tasks', find_tasks}, {'ends', add_ends}, {'templates', add_templates}, {'links', add_links}, {'places', put_all},
  {'leases', put_bundles}, {'ends of batches', finish_batches},
}

end
