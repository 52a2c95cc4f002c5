-- needs: accounts
--
-- Priorities: the lists of ready tasks that a tenant has.
--
-- A tenant's ready tasks stand in one list per priority, 0 (most urgent) to 99. The default priority's list is
-- `ready:<tenant>`; the others are `ready:<tenant>:<priority>`, and named in the sorted set `priorities:<tenant>`.
-- A priority stays there until a pop finds its list empty. Tasks of groups stand apart (tasks/turns.lua). Priorities
-- order a tenant's own tasks only; the fair pick does not read them.

-- The list of a tenant's ready tasks of a priority.
function priorities.list(call, t, priority)
  local default = key(call, 'ready:' .. t.name)
  return priority == DEFAULT_PRIORITY and default or default .. ':' .. priority
end

-- The key of the turns of a tenant's groups (tasks/turns.lua).
function priorities.turns(call, t, priority)
  return key(call, 'turns:' .. t.name .. ':' .. priority)
end

-- The field of an entry in `tombstone:<tenant>`.
function priorities.field(id, priority)
  return priority == DEFAULT_PRIORITY and id or priority .. ':' .. id
end

-- The priorities whose lists may hold tasks of this tenant, most urgent first.
function priorities.of(call, t)
  local found = {DEFAULT_PRIORITY}
  if accounts.details_of(call, t).priorities == 0 then return found end
  for _, priority in ipairs(redis.call('ZRANGE', key(call, 'priorities:' .. t.name), 0, -1)) do
    found[#found + 1] = tonumber(priority)
  end
  table.sort(found)
  return found
end

function priorities.open(call, t, priority)
  if priority == DEFAULT_PRIORITY then return end
  local d = accounts.details_of(call, t)
  d.priorities = d.priorities + redis.call('ZADD', key(call, 'priorities:' .. t.name), priority, priority)
end

-- A priority's list is empty. It stays open while it has groups.
function priorities.close(call, t, priority)
  if priority == DEFAULT_PRIORITY then return end
  local d = accounts.details_of(call, t)
  if d.grouped > 0 and redis.call('EXISTS', priorities.turns(call, t, priority)) == 1 then return end
  d.priorities = d.priorities - redis.call('ZREM', key(call, 'priorities:' .. t.name), priority)
end
