-- needs: leases, records
--
-- What a clock that was far ahead has left, once it is set right.
--
-- Delays, ends of windows and the waits before retries are spans, but they are kept as times. Beside each stands the
-- time from which it was counted (`start_from` and `end_from` of a record, `began_at` of a run that waits). If that is
-- still to come, the clock was ahead then, and the span counts from now instead. So it does not matter how far the
-- clock was ahead, or whether a call saw it jump, and to look twice changes nothing. A time that the caller gave has no
-- such mark, and stays.
--
-- When schedules fire and opening hours change is computed anew by servers (features/): both are made due. Leases and
-- accounts count from the origin, which moved along (base/calls.lua), and a bucket is full after its burst at the
-- latest (pick/limits.lua).
--
-- Ticks do it, a page of one step each, after the queue's time has gone back; `mend` says how far they are.

local PAGE = 100  -- entries

-- Has servers look at what is due later, for they have computed it while the clock was ahead.
local function make_due(name)
  return function(call, cursor)
    local set = call.prefix .. name
    local page = redis.call('ZSCAN', set, cursor, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do
      local at = tonumber(page[2][i + 1])
      if at > call.now and at < math.huge then redis.call('ZADD', set, text(call.now), page[2][i]) end
    end
    return page[1]
  end
end

-- A time that was counted from another one: from now, if that is still to come.
local function recount(call, at, from)
  return from > call.now and at > from and call.now + at - from or at
end

local function mend_start(call, id, header, run)
  local delayed = call.prefix .. 'delayed:' .. header.tenant
  local score = redis.call('ZSCORE', delayed, id)
  if not score then return end
  local is_first = math.floor(score) == header.start_at  -- else it waits for a retry
  local at = recount(call, tonumber(score), is_first and header.start_from * 1000 or run and run.began_at or 0)
  redis.call('ZADD', delayed, text(at), id)
  redis.call('ZADD', call.prefix .. 'due', 'LT', math.floor(at), header.tenant)
end

local function mend_task(call, id, record, run)
  local header = records.read(record)
  local is_waiting = run and not leases.is_leased(run.state)
  local latest = math.max(header.start_from * 1000, header.end_from * 1000, is_waiting and run.began_at or 0)
  if latest <= call.now then return end
  if not run or is_waiting then mend_start(call, id, header, run) end
  local start_at = recount(call, header.start_at, header.start_from * 1000)
  local expires_at = recount(call, header.expires_at, header.end_from * 1000)
  if run then
    if run.expires_at > 0 then run.expires_at = expires_at end
    if is_waiting then run.began_at = math.min(run.began_at, call.now) end
    leases.set_run(call, id, run)
  end
  if expires_at ~= header.expires_at then redis.call('ZADD', call.prefix .. 'expiring', 'XX', text(expires_at), id) end
  local latest_from = records.counted_from(call)
  records.change_window(call, id, record, {start_at = start_at, expires_at = expires_at,
    start_from = math.min(header.start_from, latest_from), end_from = math.min(header.end_from, latest_from)})
end

local function mend_tasks(call, cursor)
  local page = redis.call('HSCAN', call.prefix .. 'tasks', cursor, 'COUNT', PAGE)
  local ids, found = {}, {}
  for i = 1, #page[2], 2 do
    if records.is_task(page[2][i + 1]) then ids[#ids + 1], found[#found + 1] = page[2][i], page[2][i + 1] end
  end
  if #ids > 0 then leases.read_runs(call, ids) end
  for i, id in ipairs(ids) do mend_task(call, id, found[i], leases.run_of(call, id)) end
  return page[1]
end

local STEPS = {make_due('fires'), make_due('opening_changes'), mend_tasks}

-- Begins, if the queue's time has gone back; anew, if ticks are still at it.
function jumps.begin(call)
  if call.queue.sweeping ~= WENT_BACK then return end
  call.queue.sweeping, call.is_changed = SWEEP_WANTED, true
  redis.call('SET', call.prefix .. 'mend', '1 0')
end

-- Does the next page, if there is one. Until the last, ticks go on with sweeps: so they look for it at no other time.
function jumps.mend(call)
  local queue, at = call.queue, call.prefix .. 'mend'
  local step, cursor = (redis.call('GET', at) or ''):match('^(%d) (%d+)$')
  if not step then return end
  step, call.is_changed = tonumber(step), true
  cursor = STEPS[step](call, cursor)
  if cursor == '0' then step = step + 1 end
  if not STEPS[step] then return redis.call('DEL', at) end
  redis.call('SET', at, step .. ' ' .. cursor)
  queue.sweeping = queue.sweeping == NO_SWEEP and SWEEP_WANTED or queue.sweeping
end
