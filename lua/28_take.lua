-- Taking ids off the heads of a tenant's lists. A claim reads all that it needs before it writes anything: entries are
-- only counted as taken, also for what the same call reads next, until `takes.write`.

local takes = {}  -- what other sections call
do

-- The next entries of a list behind those that this call has taken.
local function next_entries(call, t, level, wanted)
  local list = ready_key(call, t, level)
  local own = call.taken[list]
  if not own then
    own = {count = 0, tenant = t, level = level, is_empty = false}
    call.taken[list] = own
  end
  local entries = redis.call('LRANGE', list, own.count, own.count + wanted - 1)
  own.count, own.is_empty = own.count + #entries, #entries < wanted
  return entries
end

-- Adds the entries that are not void to `ids`; the others are marked as passed.
local function add_live(call, t, level, entries, ids)
  local marks, fields, left = call.void_marks[t] or {}, {}, {}
  call.void_marks[t] = marks
  for i, id in ipairs(entries) do fields[i] = void_field(id, level) end
  for i, count in ipairs(redis.call('HMGET', key(call, 'void:' .. t.name), unpack(fields))) do
    left[fields[i]] = tonumber(count or 0) - (marks[fields[i]] or 0)
  end
  for i, id in ipairs(entries) do  -- one by one: a void and its replayed task may both be among them
    local field = fields[i]
    if left[field] > 0 then
      left[field], marks[field] = left[field] - 1, (marks[field] or 0) + 1
      t.voids, call.voids = t.voids - 1, call.voids + 1
    else
      ids[#ids + 1] = id
    end
  end
end

-- Takes ids of one level until there are `wanted`, passing over voids.
local function take_level(call, t, level, wanted, ids)
  while #ids < wanted and call.voids < VOIDS_PER_CALL do
    local entries = next_entries(call, t, level, wanted - #ids)
    if #entries == 0 then return end
    add_live(call, t, level, entries, ids)
  end
end

-- Up to `wanted` ids of one tenant, the next ones first.
function takes.ids(call, t, wanted)
  if t.voids == 0 and t.levels == 0 then return next_entries(call, t, USUAL_PRIORITY, wanted) end
  local ids = {}
  for _, level in ipairs(levels_of(call, t)) do take_level(call, t, level, wanted, ids) end
  return ids
end

-- Takes what was taken out of the store.
function takes.write(call)
  for list, own in pairs(call.taken) do
    if own.count > 0 then redis.call('LTRIM', list, own.count, -1) end
    if own.is_empty then close_level(call, own.tenant, own.level) end
  end
  for t, marks in pairs(call.void_marks) do
    local void = key(call, 'void:' .. t.name)
    for field, count in pairs(marks) do
      if redis.call('HINCRBY', void, field, -count) == 0 then redis.call('HDEL', void, field) end
    end
    if t.ready == 0 then drop_lists(call, t) end
  end
  call.taken, call.void_marks = {}, {}
end

end
