-- needs: accounts, calls, places, priorities, task_options, turns
--
-- Taking ids off the heads of a tenant's lists. A claim reads all that it needs before it writes anything: entries are
-- only counted as taken, also for what the same call reads next, until `takes.write`.

local TOMBSTONES_PER_CALL = 500  -- tombstone entries that one call passes over before it leaves the rest to the next
local LEAST_TOMBSTONES = 8       -- of a tenant, which it passes over in any case

-- What this call has taken of a list.
local function taken_of(call, t, priority)
  local list, taken = priorities.list(call, t, priority), call.taken or calls.table_of(call, 'taken')
  if not taken[list] then
    taken[list] = {list = list, count = 0, tenant = t, priority = priority, is_empty = false}
  end
  return taken[list]
end

-- The entries of a list behind those that this call has taken, and `skipped` more.
local function entries_behind(own, skipped, wanted)
  local first = own.count + skipped
  if wanted == 1 then return {redis.call('LINDEX', own.list, first) or nil} end
  return redis.call('LRANGE', own.list, first, first + wanted - 1)
end

-- Takes the next entries of a list that has no tombstones.
local function next_entries(call, t, priority, wanted)
  local own = taken_of(call, t, priority)
  local entries = entries_behind(own, 0, wanted)
  own.count, own.is_empty = own.count + #entries, #entries < wanted
  return entries
end

-- Adds entries of a list to what is ahead: the ids of those that are not tombstones, and how many entries there are up
-- to each. `ahead.passed` counts by field the tombstones that were passed before, and these too.
local function add_live(call, t, priority, entries, ahead)
  local passed, fields, left, known = ahead.passed, {}, {}, #ahead.entries
  for i, id in ipairs(entries) do fields[i], ahead.entries[known + i] = priorities.field(id, priority), id end
  local has_tombstones = accounts.details_of(call, t).tombstones > 0
  local counts = has_tombstones and redis.call('HMGET', key(call, 'tombstone:' .. t.name), unpack(fields)) or {}
  for i, count in ipairs(counts) do
    if count then left[fields[i]] = tonumber(count) - (passed[fields[i]] or 0) end
  end
  for i, id in ipairs(entries) do  -- one by one: a tombstone and its replayed task may both be among them
    local field = fields[i]
    if (left[field] or 0) > 0 then
      left[field], passed[field] = left[field] - 1, (passed[field] or 0) + 1
    else
      ahead.ids[#ahead.ids + 1], ahead.ends[#ahead.ends + 1] = id, known + i
    end
  end
end

-- Whether the call has passed over so many tombstones of the tenant that it leaves the rest to the next one.
local function is_tired(call, t)
  return accounts.details_of(call, t).tombstones > 0 and call.tombstones >= call.most_tombstones
end

-- Looks for the next `wanted` tasks of a list, without taking any.
local function look_ahead(call, t, priority, wanted)
  local own, marks = taken_of(call, t, priority), call.marks or calls.table_of(call, 'marks')
  local ahead = {own = own, entries = {}, ids = {}, ends = {}, passed = {}, is_end = false}
  for field, count in pairs(marks[t] or {}) do ahead.passed[field] = count end
  local passes = accounts.details_of(call, t).tombstones == 0 and math.huge or call.most_tombstones - call.tombstones
  while #ahead.ids < wanted and not ahead.is_end and #ahead.entries - #ahead.ids < passes do
    local page = entries_behind(own, #ahead.entries, wanted - #ahead.ids)
    ahead.is_end = #page < wanted - #ahead.ids
    if #page > 0 then add_live(call, t, priority, page, ahead) end
  end
  return ahead
end

-- Takes the first `count` of the tasks that are ahead, and the tombstones before them; with the last one all of them.
local function take_ahead(call, ahead, count)
  local own, is_all = ahead.own, count == #ahead.ids
  local t, last = own.tenant, is_all and #ahead.entries or ahead.ends[count] or 0
  local d, marks, nth = accounts.details_of(call, t), call.marks[t] or {}, 1
  call.marks[t] = marks
  for i = 1, last do
    if ahead.ends[nth] == i then
      nth = nth + 1
    else
      local field = priorities.field(ahead.entries[i], own.priority)
      marks[field] = (marks[field] or 0) + 1
    end
  end
  d.tombstones, call.tombstones = d.tombstones - (last - count), call.tombstones + last - count
  own.count, own.is_empty = own.count + last, ahead.is_end and is_all
end

-- Takes ids of one priority that has groups (tasks/turns.lua): by turns.
local function take_by_turns(call, own, wanted, ids)
  local loose, count = look_ahead(call, own.tenant, own.priority, wanted - #ids + 1), 0
  if #loose.ids > 0 or loose.is_end then turns.set_loose(own, #loose.ids > 0) end
  while #ids < wanted do
    local member, id, has_more = turns.first(call, own, wanted - #ids), nil, nil
    if not member then break end
    if member == turns.LOOSE then
      id, has_more = loose.ids[count + 1], loose.ids[count + 2] ~= nil
      count = id and count + 1 or count
    else
      id, has_more = turns.next_id(call, own, member)
    end
    if id then
      ids[#ids + 1] = id
      turns.move_on(own, member, member == turns.LOOSE and 1 or task_options.of(call, id).weight, has_more)
    else
      turns.drop_first(own)
    end
  end
  take_ahead(call, loose, count)
end

-- Takes ids of one priority until there are `wanted`, passing over tombstones.
local function take_priority(call, t, priority, wanted, ids)
  local own = accounts.details_of(call, t).grouped > 0 and turns.line(call, t, priority)
  if own then return take_by_turns(call, own, wanted, ids) end
  local ahead = look_ahead(call, t, priority, wanted - #ids)
  for _, id in ipairs(ahead.ids) do ids[#ids + 1] = id end
  take_ahead(call, ahead, #ahead.ids)
end

-- Up to `wanted` ids of one tenant, the next ones first, and whether tombstones are left before others. Of the
-- tombstones that the call may pass over, the tenants that are still to come have equal parts; `left` says how many
-- they are, if it is more than this one.
function takes.ids(call, t, wanted, left)
  local d = not accounts.is_plain(t) and accounts.details_of(call, t)
  if not d or d.tombstones + d.grouped + d.priorities == 0 then
    return next_entries(call, t, DEFAULT_PRIORITY, wanted)
  end
  local ids = {}
  local part = math.ceil((TOMBSTONES_PER_CALL - call.tombstones) / (left or 1))
  call.most_tombstones = call.tombstones + math.max(LEAST_TOMBSTONES, part)
  for _, priority in ipairs(priorities.of(call, t)) do
    if #ids == wanted or is_tired(call, t) then break end
    take_priority(call, t, priority, wanted, ids)
  end
  return ids, is_tired(call, t)
end

-- Removes the taken entries from the store.
function takes.write(call)
  turns.write(call)
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
