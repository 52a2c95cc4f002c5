-- needs: accounts, batch_ends, batches, calls, leases, limits, places, records, repair_places, seats
--
-- The steps of a repair (operate/repair.lua), in order; each does a page and returns the next cursor, nil at its end.
--
-- A page has 64 elements, or 4 where they may be long. The store returns a small hash whole: then a page has up to 512
-- short ones. A page of the search for keys looks at 500.
--
-- A tenant's tasks are not put into their places (operate/repair_places.lua) as they are found, but first into
-- `repair:tasks:<tenant>`, in the order in which they were enqueued; leased ones come before all others, since they
-- have the slots of their batches.

local PAGE, LONG_PAGE, KEYS = 64, 4, 500  -- elements; elements that may be long; keys
local DERIVED = {  -- the kinds of keys that are dropped: what stands before the first colon in their names
  ready = true, priorities = true, group = true, turns = true, class = true, wake = true, idle = true,
  sweep = true, parked = true, due = true, expiring = true, leases = true, extended = true, deaths = true,
  dead_counts = true, pending = true, members = true, completed = true, done = true, repair = true, bundles = true,
  claims = true, promoter = true,
}

-- A page of a hash (or sorted set): its fields and values alternately, the next cursor, and the fields alone.
local function page_of(call, name, cursor, count, command)
  local next_cursor, flat = scan(command or 'HSCAN', call.prefix .. name, cursor, count or PAGE)
  local fields = {}
  for i = 1, #flat, 2 do fields[#fields + 1] = flat[i] end
  return flat, next_cursor ~= '0' and next_cursor or nil, fields
end

local function drop(call, cursor)
  local next_cursor = calls.unlink_some(call, cursor, KEYS, function(name)
    return DERIVED[name:match('^[^:]*')] and name ~= 'repair'
  end)
  return next_cursor ~= '0' and next_cursor or nil
end

-- Names each account in `tenants` again, if its name is lost there.
local function name_accounts(call, cursor)
  local flat, next_cursor = page_of(call, 'accounts', cursor)
  for i = 1, #flat, 2 do
    local account = accounts.unpack(call, flat[i], flat[i + 1])
    redis.call('HSETNX', call.prefix .. 'tenants', account.name, DETAILS.pack(DETAILS.new{tag = account.tag}))
    call.queue.numbers = math.max(call.queue.numbers, (struct.unpack('<I', account.tag)))
  end
  return next_cursor
end

-- Sets a tenant's counts to zero and takes it out of the pick. Its settings stay.
local function clear_tenant(call, account)
  local details, books, name = accounts.details_of(call, account), accounts.books_of(call, account), account.name
  local hours = redis.call('HGET', call.prefix .. 'opening_hours', name)
  books.entitled, books.bytes = seats.entitled_to(call, account), 0
  books.events = redis.call('XLEN', call.prefix .. 'events:' .. name)
  account.starts, account.leased, account.ready, account.loan = 0, 0, 0, accounts.NO_LOAN
  account.slot, account.class, account.standing, account.is_on_wake_list = OUT, 0, 0, 0
  details.pending, details.delayed, details.dead, details.grouped = 0, 0, 0, 0
  details.limited = redis.call('HEXISTS', call.prefix .. 'limits', name)
  limits.block(details, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
  if bit.band(details.blocked, BLOCKED_RATE) ~= 0 then limits.meter(call, account) end
end

local function clear_tenants(call, cursor)
  local flat, next_cursor = page_of(call, 'tenants', cursor)
  for i = 1, #flat, 2 do
    local account = accounts.touch(call, accounts.named(call, flat[i], flat[i + 1]))
    clear_tenant(call, account)
    if redis.call('EXISTS', call.prefix .. 'delayed:' .. account.name) == 1 then
      redis.call('ZADD', call.prefix .. 'repair:tenants', 0, account.name)  -- missing tasks may leave it behind
    end
  end
  return next_cursor
end

local function add_bytes(call, name, bytes)
  accounts.add_bytes(call, accounts.touch_named(call, name), bytes)
end

local function clear_batches(call, cursor)
  local _, next_cursor, ids = page_of(call, 'batches', cursor)
  for _, id in ipairs(ids) do
    local batch = batches.find(call, id)
    batch.running, batch.admitted, batch.total = 0, 0, batch.done + batch.dead + batch.cancelled
    add_bytes(call, batch.tenant, batches.bytes_of(id, batch))
    if batch.state == COMPLETE then redis.call('ZADD', call.prefix .. 'completed', batch.completed_at, id) end
  end
  repair_places.write_batches(call)
  return next_cursor
end

-- Sets aside a task that is not dead, until its tenant's turn.
local function put_aside(aside, id, header, run)
  local tasks = aside[header.tenant] or {}
  aside[header.tenant] = tasks
  tasks[#tasks + 1] = run and leases.is_leased(LEASE.unpack(run).state) and '-inf' or text(header.enqueued_at)
  tasks[#tasks + 1] = id
end

local function find_tasks(call, cursor)
  local flat, next_cursor, ids = page_of(call, 'tasks', cursor)
  if cursor == '0' then call.queue.tasks_with_options = redis.call('HLEN', call.prefix .. 'task_options') end
  if #ids == 0 then return next_cursor end
  local deaths, marks, aside = redis.call('HMGET', call.prefix .. 'dead', unpack(ids)), {}, {}
  local runs = redis.call('HMGET', call.prefix .. 'runs', unpack(ids))
  for i, id in ipairs(ids) do
    if not records.is_task(flat[2 * i]) then
      marks[#marks + 1] = id
    elseif deaths[i] then
      local header, bytes = records.read(flat[2 * i], id)
      local death, account = DEATH.unpack(deaths[i]), accounts.touch_named(call, header.tenant)
      accounts.add_bytes(call, account, bytes + death.counted)
      places.count_dead(call, account, id, death.died_at)
      call.queue.last_lease = math.max(call.queue.last_lease, death.lease)
      leases.set_run(call, id, nil)  -- left by a call that failed between its writes
    else
      put_aside(aside, id, records.read(flat[2 * i]), runs[i])
    end
  end
  local awaited = {}
  for name, tasks in pairs(aside) do
    write('ZADD', call.prefix .. 'repair:tasks:' .. name, tasks)
    awaited[#awaited + 1], awaited[#awaited + 2] = 0, name
  end
  write('ZADD', call.prefix .. 'repair:tenants', awaited)
  records.name_marks(call, marks)
  leases.write(call)
  return next_cursor
end

-- Counts the bytes of results and dedupe keys; entries without a tenant are deleted.
local function add_ends(call, cursor)
  local _, next_cursor, members = page_of(call, 'ends', cursor, PAGE, 'ZSCAN')
  for _, member in ipairs(members) do
    local account = accounts.at(call, member:sub(2, 5))
    if account then
      accounts.add_bytes(call, accounts.touch(call, account), (struct.unpack('<I', member, 6)))
    else
      redis.call('ZREM', call.prefix .. 'ends', member)
    end
  end
  return next_cursor
end

local function add_templates(call, cursor)
  local flat, next_cursor = page_of(call, 'templates', cursor, LONG_PAGE)
  for i = 1, #flat, 2 do
    add_bytes(call, flat[i]:match('^[^/]*'), accounts.bytes_of(flat[i], #flat[i + 1]))
  end
  return next_cursor
end

-- Completes the batches that have no task left.
local function finish_batches(call, cursor)
  local _, next_cursor, ids = page_of(call, 'batches', cursor)
  for _, id in ipairs(ids) do batches.find(call, id) end
  batch_ends.finish(call)
  return next_cursor
end

repair_steps.all = {  -- name, step(call, cursor)
  {'drop', drop}, {'accounts', name_accounts}, {'tenants', clear_tenants},
  {'batches', clear_batches}, {'tasks', find_tasks}, {'ends', add_ends}, {'templates', add_templates},
  {'places', repair_places.put_all}, {'ends of batches', finish_batches},
}
