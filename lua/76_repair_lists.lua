-- Repair (68_repair.lua): the lists of ready tasks.
--
-- An entry of a ready list is right if it is the last one of a task that is ready and of that priority; any other is
-- tombstone. So a list is walked from its end, and stays as it is. A ready task without an entry comes before the first
-- task of its list that was enqueued after it: the list is then copied, with the lost ones in between. One that has
-- tombstones in the list comes last, since its tombstones stand before it.
do

local jobs, part, note = repairs.jobs, repairs.part, repairs.note

-- The priorities for which there is a key that begins so.
local function existing(call, beginning)
  local names, found, r = {}, {}, call.repair
  for priority = 0, MAX_PRIORITY do names[priority + 1] = beginning .. priority end
  r.left = r.left - 3
  if redis.call('EXISTS', unpack(names)) == 0 then return found end
  r.left = r.left - 20
  for priority = 0, MAX_PRIORITY do
    if redis.call('EXISTS', names[priority + 1]) == 1 then found[#found + 1] = priority end
  end
  return found
end

-- Asks for the groups of a tenant (79_repair_turns.lua).
local function ask_turns(call, name, found)
  local keys = {}
  for i, priority in ipairs(found) do keys[i] = priorities.turns(call, {name = name}, priority) end
  if redis.call('EXISTS', unpack(keys)) == 0 then return end
  for i, priority in ipairs(found) do
    if redis.call('EXISTS', keys[i]) == 1 then repairs.ask(call, 'turns', priority .. ':' .. name) end
  end
end

-- Asks for all that a tenant's ready tasks stand in, or are to.
local function ask_lists(call, name, details)
  local found, default = {DEFAULT_PRIORITY}, key(call, 'ready:' .. name)
  if call.queue.tasks_with_options > 0 or details.priorities > 0 then
    call.repair.left = call.repair.left - 20
    for priority = 0, MAX_PRIORITY do found[priority + 1] = priority end
  end
  local names = {part(call, 'ready:' .. name), key(call, 'tombstone:' .. name), key(call, 'priorities:' .. name),
    default}
  ask_turns(call, name, found)
  for _, priority in ipairs(found) do
    if priority ~= DEFAULT_PRIORITY then names[#names + 1] = default .. ':' .. priority end
  end
  if redis.call('EXISTS', unpack(names)) == 0 then return end
  for _, priority in ipairs(found) do
    local list = priority == DEFAULT_PRIORITY and default or default .. ':' .. priority
    if redis.call('EXISTS', list) == 1 then repairs.ask(call, 'list', priority .. ':' .. name) end
  end
  repairs.ask(call, 'tombstones', name)
  repairs.ask(call, 'priorities', name)
  repairs.ask(call, 'lost', name)
end

function jobs.lists(call, job)
  local flat, is_last = repairs.scan(call, job, 'tenants', call.queue.tasks_with_options > 0 and 3 or 20)
  for i = 1, #flat, 2 do ask_lists(call, flat[i], (DETAILS.unpack(flat[i + 1]))) end
  return is_last
end

-- The list that a job is about: priority, tenant's name, key.
local function list_of(call, job)
  local priority, name = job.rest:match('^(%d+):(.*)$')
  priority = tonumber(priority)
  return priority, name, priorities.list(call, {name = name}, priority)
end

-- Tells right entries from tombstones, a page from the end of the list on.
function jobs.list(call, job)
  local priority, name, list = list_of(call, job)
  local seen, ready = tonumber(job.cursor), part(call, 'ready:' .. name)
  local ids = redis.call('LRANGE', list, -seen - repairs.PAGE, -seen - 1)
  if #ids == 0 then return true end
  task_options.read(call, ids)
  local waits, right, tombstones = redis.call('ZMSCORE', ready, unpack(ids)), {}, {}
  for i = #ids, 1, -1 do
    local id, field = ids[i], priorities.field(ids[i], priority)
    local asked = task_options.of(call, id)
    local is_here = asked.priority == priority and turns.group_of(asked) == ''
    if waits[i] and is_here and redis.call('ZREM', ready, id) == 1 then
      right[#right + 1] = id
    else
      tombstones[field] = (tombstones[field] or 0) + 1
    end
  end
  local sums = repairs.kept(call, 'sums', SUMS, name)
  sums.ready, sums.tombstones = sums.ready + #right, sums.tombstones + #ids - #right
  for field, count in pairs(tombstones) do redis.call('HINCRBY', part(call, 'tombstones'), field, count) end
  job.cursor, call.repair.left = text(seen + #ids), call.repair.left - #ids
  return false
end

-- Compares the tombstones that were found with the counted ones, and writes the former if they differ.
function jobs.tombstones(call, job)
  local found, noted = part(call, 'tombstones'), key(call, 'tombstone:' .. job.rest)
  local flat, is_last = repairs.scan(call, job, 'repair:tombstones')
  for i = 1, #flat, 2 do
    if redis.call('HGET', noted, flat[i]) ~= flat[i + 1] then job.flaws = job.flaws + 1 end
  end
  if not is_last then return false end
  if job.flaws > 0 or redis.call('HLEN', found) ~= redis.call('HLEN', noted) then
    note(call, 'tombstones', math.max(job.flaws, 1))
    redis.call('UNLINK', noted)
    if redis.call('EXISTS', found) == 1 then redis.call('RENAME', found, noted) end
  end
  redis.call('UNLINK', found)
  return true
end

-- Sees that the priorities whose lists hold anything are named, and nothing else is.
function jobs.priorities(call, job)
  local at, list = key(call, 'priorities:' .. job.rest), key(call, 'ready:' .. job.rest)
  for _, member in ipairs(redis.call('ZRANGE', at, 0, -1)) do
    local priority = tonumber(member)
    local is_named = priority and priority >= 0 and priority <= MAX_PRIORITY and priority ~= DEFAULT_PRIORITY
    if not is_named or text(priority) ~= member then
      note(call, 'priorities', redis.call('ZREM', at, member))
    end
  end
  for _, beginning in ipairs({list .. ':', key(call, 'turns:' .. job.rest .. ':')}) do
    for _, priority in ipairs(existing(call, beginning)) do
      if priority ~= DEFAULT_PRIORITY then
        note(call, 'priorities', redis.call('ZADD', at, 'NX', priority, priority))
      end
    end
  end
  return true
end

-- Where a lost task goes: its batch may have no slot for it, or it may start later; else into its priority's list.
local function put_lost(call, name, id, fact, touched)
  local b, sums = repairs.batch_of(call, fact), repairs.kept(call, 'sums', SUMS, name)
  local asked = task_options.of(call, id)
  local priority, group = asked.priority, turns.group_of(asked)
  local tally = b and repairs.kept(call, 'tallies', TALLY, fact.asked.batch)
  if fact.header.start_at > call.now and not fact.run then
    redis.call('ZADD', key(call, 'delayed:' .. name), text(fact.header.start_at), id)
    sums.delayed = sums.delayed + 1
    if tally then tally.admitted = tally.admitted - 1 end
  elseif b and b.max_running > 0 and tally.admitted > b.max_running then
    b.sequence, tally.admitted, sums.pending = b.sequence + 1, tally.admitted - 1, sums.pending + 1
    redis.call('ZADD', key(call, 'pending:' .. fact.asked.batch), batches.score(priority, b.sequence), id)
    redis.call('HSET', key(call, 'batches'), fact.asked.batch, BATCH.pack(b))
  elseif group ~= '' then
    local order = turns.next_order(call)
    redis.call('ZADD', turns.group_key(call, {name = name}, priority, group), text(order), id)
    turns.join(call, {name = name}, priority, {{group = group, weight = asked.weight, order = order}})
    if priority ~= DEFAULT_PRIORITY then redis.call('ZADD', key(call, 'priorities:' .. name), priority, priority) end
    sums.ready, sums.grouped = sums.ready + 1, sums.grouped + 1
  else
    local is_tombstone = redis.call('HEXISTS', key(call, 'tombstone:' .. name), priorities.field(id, priority)) == 1
    redis.call('ZADD', part(call, 'lost:' .. priority), is_tombstone and '+inf' or text(fact.header.enqueued_at), id)
    touched[priority] = true
    sums.ready = sums.ready + 1
  end
end

-- Sorts the ready tasks of a tenant that no list has by their priorities.
function jobs.lost(call, job)
  local ready, touched = part(call, 'ready:' .. job.rest), {}
  local ids = redis.call('ZRANGE', ready, 0, repairs.PAGE - 1)
  if #ids == 0 then
    for _, priority in ipairs(existing(call, part(call, 'lost:'))) do
      repairs.ask(call, 'merge', priority .. ':' .. job.rest)
    end
    return true
  end
  task_options.read(call, ids)
  local facts = repairs.facts(call, ids)
  for _, id in ipairs(ids) do put_lost(call, job.rest, id, facts[id], touched) end
  redis.call('ZREM', ready, unpack(ids))
  note(call, 'ready', #ids)
  call.repair.left = call.repair.left - #ids
  return false
end

-- The lost tasks that come before a task enqueued then, taken out of those that are still to be placed; a page at most.
local function next_lost(call, priority, enqueued_at)
  local lost = part(call, 'lost:' .. priority)
  local ids = redis.call('ZRANGE', lost, '-inf', enqueued_at, 'BYSCORE', 'LIMIT', 0, repairs.PAGE)
  write('ZREM', lost, ids)
  call.repair.left = call.repair.left - #ids
  return ids
end

-- Copies a page of a list, with the lost tasks where they belong.
function jobs.merge(call, job)
  local priority, name, list = list_of(call, job)
  local copy, seen = part(call, 'list'), tonumber(job.cursor)
  local entries, out = redis.call('LRANGE', list, seen, seen + repairs.PAGE - 1), {}
  if #entries == 0 then
    local ids = next_lost(call, priority, '+inf')
    write('RPUSH', copy, ids)
    if #ids > 0 then return false end
    redis.call('UNLINK', list)
    redis.call('RENAME', copy, list)
    if priority ~= DEFAULT_PRIORITY then redis.call('ZADD', key(call, 'priorities:' .. name), priority, priority) end
    return true
  end
  local found = records.of(call, entries)
  for i, id in ipairs(entries) do
    local is_task = records.is_task(found[i])
    local first = is_task and next_lost(call, priority, '(' .. text(records.read(found[i]).enqueued_at)) or {}
    for _, lost in ipairs(first) do out[#out + 1] = lost end
    if #first + #out >= 2 * repairs.PAGE or #first == repairs.PAGE then break end  -- there may be more before this one
    out[#out + 1], seen = id, seen + 1
  end
  write('RPUSH', copy, out)
  job.cursor, call.repair.left = text(seen), call.repair.left - #entries
  return false
end

end
