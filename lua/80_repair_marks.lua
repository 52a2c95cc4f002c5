-- Repair (68_repair.lua): the lists of marks, and how any list is filtered.
do

local jobs, part, note = repairs.jobs, repairs.part, repairs.note
local MINUTE_MS = 60000
local NEAR_MINUTES, FAR_MINUTES, MINUTES = 120, 100000, 200  -- marks are looked for around now and `queue.minute`

-- Asks for the lists of marks, minute by minute.
function jobs.marks(call, job)
  local q, now, names = call.queue, math.floor(call.now / MINUTE_MS), {}
  local known = math.abs(q.minute - now) < FAR_MINUTES and math.floor(q.minute) or now
  local first = math.max(math.min(known, now) - NEAR_MINUTES, tonumber(job.cursor))
  local last = math.max(known, now) + NEAR_MINUTES
  for minute = first, first + MINUTES - 1 do names[#names + 1] = key(call, 'done:' .. minute) end
  if redis.call('EXISTS', unpack(names)) > 0 then
    for i, name in ipairs(names) do
      if redis.call('EXISTS', name) == 1 then repairs.ask(call, 'done', first + i - 1) end
    end
  end
  job.cursor, call.repair.left = text(first + MINUTES), call.repair.left - 20
  return first + MINUTES > last
end

-- Takes entries out of a list: it is copied page by page without them, and replaced if there were any.
function repairs.filter(call, job, name, kind, keep)
  local at, copy, first = key(call, name), part(call, 'list'), tonumber(job.cursor)
  local entries = redis.call('LRANGE', at, first, first + repairs.PAGE - 1)
  if #entries == 0 then
    redis.call('UNLINK', job.flaws > 0 and at or copy)  -- first: what RENAME replaces may be freed at once
    if redis.call('EXISTS', copy) == 1 then redis.call('RENAME', copy, at) end
    return true
  end
  local kept = keep(entries)
  write('RPUSH', copy, kept)
  note(call, kind, #entries - #kept)
  job.cursor, job.flaws = text(first + #entries), job.flaws + #entries - #kept
  call.repair.left = call.repair.left - #entries
  return false
end

local function note_minute(call, minute)
  local totals = call.repair.totals
  totals.first_minute = math.min(totals.first_minute or minute, minute)
end

function jobs.done(call, job)
  return repairs.filter(call, job, 'done:' .. job.rest, 'marks', function(ids)
    local kept, marks = {}, part(call, 'marks')
    for _, id in ipairs(ids) do
      if redis.call('SREM', marks, id) == 1 then kept[#kept + 1] = id end
    end
    if #kept > 0 then note_minute(call, tonumber(job.rest)) end
    return kept
  end)
end

-- Names the marks that no list names, for the minute that is now.
function jobs.unnamed(call)
  local q, r, minute = call.queue, call.repair, math.floor(call.now / MINUTE_MS)
  local ids = redis.call('SPOP', part(call, 'marks'), repairs.PAGE)
  if #ids > 0 then
    redis.call('RPUSH', key(call, 'done:' .. minute), unpack(ids))
    note_minute(call, minute)
    note(call, 'marks', #ids)
    r.left = r.left - #ids
    return false
  end
  local first, count = r.totals.first_minute, r.totals.remembered or 0
  note(call, 'counts', q.remembered ~= count and 1 or 0)
  q.remembered = count
  if first and (q.minute > first or q.minute < first - FAR_MINUTES) then q.minute = first end
  return true
end

end
