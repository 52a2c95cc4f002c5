-- Taking ids off the heads of a tenant's lists. A claim reads all that it needs before it writes anything: entries are
-- only counted as taken, also for what the same call reads next, until `takes.write`.

local takes = {}  -- what other sections call
do

takes.TOMBSTONES_PER_CALL = 500  -- tombstone entries that one call passes over before it leaves the rest to the next

-- The next entries of a list behind those that this call has taken.
local function next_entries(call, t, priority, wanted)
  local list, taken = priorities.list(call, t, priority), call.taken or calls.table_of(call, 'taken')
  local own = taken[list]
  if not own then
    own = {count = 0, tenant = t, priority = priority, is_empty = false}
    taken[list] = own
  end
  local entries
  if wanted == 1 then
    entries = {redis.call('LINDEX', list, own.count) or nil}
  else
    entries = redis.call('LRANGE', list, own.count, own.count + wanted - 1)
  end
  own.count, own.is_empty = own.count + #entries, #entries < wanted
  return entries
end

-- Adds the entries of a list that are not tombstones to `ids`. `passed`, if given, counts by field the tombstones
-- that were passed before, and these too; returns how many these were.
function takes.add_live(call, t, priority, entries, ids, passed)
  local fields, left, tombstones = {}, {}, 0
  for i, id in ipairs(entries) do fields[i] = priorities.field(id, priority) end
  for i, count in ipairs(redis.call('HMGET', key(call, 'tombstone:' .. t.name), unpack(fields))) do
    left[fields[i]] = tonumber(count or 0) - (passed[fields[i]] or 0)
  end
  for i, id in ipairs(entries) do  -- one by one: a tombstone and its replayed task may both be among them
    local field = fields[i]
    if left[field] > 0 then
      left[field], passed[field], tombstones = left[field] - 1, (passed[field] or 0) + 1, tombstones + 1
    else
      ids[#ids + 1] = id
    end
  end
  return tombstones
end

-- Whether the call has passed over so many tombstones that it leaves the rest to the next one.
function takes.is_tired(call)
  return call.tombstones >= takes.TOMBSTONES_PER_CALL
end

-- Takes ids of one priority until there are `wanted`, passing over tombstones.
local function take_priority(call, t, priority, wanted, ids)
  while #ids < wanted and not takes.is_tired(call) do
    local entries = next_entries(call, t, priority, wanted - #ids)
    if #entries == 0 then return end
    local marks, d = calls.table_of(call, 'marks'), accounts.details_of(call, t)
    marks[t] = marks[t] or {}
    local tombstones = takes.add_live(call, t, priority, entries, ids, marks[t])
    d.tombstones, call.tombstones = d.tombstones - tombstones, call.tombstones + tombstones
  end
end

-- Up to `wanted` ids of one tenant, the next ones first.
function takes.ids(call, t, wanted)
  if accounts.is_plain(t) then return next_entries(call, t, DEFAULT_PRIORITY, wanted) end
  local d = accounts.details_of(call, t)
  if d.tombstones == 0 and d.priorities == 0 then return next_entries(call, t, DEFAULT_PRIORITY, wanted) end
  local ids = {}
  for _, priority in ipairs(priorities.of(call, t)) do take_priority(call, t, priority, wanted, ids) end
  return ids
end

-- Removes the taken entries from the store.
function takes.write(call)
  for list, own in pairs(call.taken or {}) do
    if own.count == 1 then
      redis.call('LPOP', list)
    elseif own.count > 1 then
      redis.call('LTRIM', list, own.count, -1)
    end
    if own.is_empty then priorities.close(call, own.tenant, own.priority) end
  end
  for t, marks in pairs(call.marks or {}) do
    local tombstone = key(call, 'tombstone:' .. t.name)
    for field, count in pairs(marks) do
      if redis.call('HINCRBY', tombstone, field, -count) == 0 then redis.call('HDEL', tombstone, field) end
    end
    if t.ready == 0 then places.drop_lists(call, t) end
  end
  call.taken, call.marks = false, false
end

end
