-- needs: accounts, leases, places, records, task_options
--
-- Corrects the times that were computed while the store's clock was far ahead, once it is set right.
--
-- Delays, ends of windows and waits before retries are spans, but they are stored as times. With each is stored the
-- time from which it counts (`start_from` and `end_from` of a record), or its length (`lasts` of a run that waits). If
-- the first time is in the future, the clock was ahead then, and the span counts from now instead. So it does not
-- matter how far the clock was ahead, or whether a call saw it jump, and a second pass changes nothing. A time that the
-- caller gave has no such mark, and stays.
--
-- A task that is ready since a time in the future is ready since now (inspect/oldest.lua), and a dead letter died now.
--
-- When schedules fire and opening hours change is computed anew by servers (features/): both are made due. Leases and
-- accounts count from the origin, which moved along (base/calls.lua), and a bucket is full after its burst at the
-- latest (pick/limits.lua).
--
-- Ticks do it, a page of one step each, after the queue's time has gone back; `mend` says how far they are.

local PAGE = 100  -- entries

-- Makes schedules and changes of opening hours due: servers computed their times while the clock was ahead.
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

-- A time that counts from another one; from now, if that one is in the future.
local function recount(call, at, from)
  return from > call.now and at > from and call.now + at - from or at
end

local function is_dead(call, id)
  return redis.call('HEXISTS', call.prefix .. 'dead', id) == 1
end

-- When a task that waits will be ready, or since when it is.
local function mend_wait(call, id, record, run)
  local header, bytes = records.read(record, id)
  if (run and run.began_at or math.max(header.enqueued_at, header.start_at)) <= call.now then return end
  local delayed, at = call.prefix .. 'delayed:' .. header.tenant, call.now
  local score, from = redis.call('ZSCORE', delayed, id), header.start_from * 1000
  if run then from = run.lasts > 0 and run.began_at - run.lasts * 1000 or 0 end
  if score then
    at = recount(call, tonumber(score), from)
    redis.call('ZADD', delayed, text(at), id)
    redis.call('ZADD', call.prefix .. 'due', 'LT', math.floor(at), header.tenant)
  end
  if run then
    run.began_at = math.floor(at)
    leases.set_run(call, id, run)
  elseif (not score or header.enqueued_at > call.now) and not is_dead(call, id) then
    leases.set_new_run(call, id, header, bytes, accounts.named(call, header.tenant).tag, 0, math.floor(at))
  end
end

local function mend_task(call, id, record, run)
  if not (run and leases.is_leased(run.state)) then mend_wait(call, id, record, run) end
  local header = records.read(record)
  if math.max(header.start_from, header.end_from) * 1000 <= call.now then return end
  local start_at = recount(call, header.start_at, header.start_from * 1000)
  local expires_at = recount(call, header.expires_at, header.end_from * 1000)
  run = leases.run_of(call, id)
  if run and run.expires_at > 0 then
    run.expires_at = expires_at
    leases.set_run(call, id, run)
  end
  if expires_at ~= header.expires_at then redis.call('ZADD', call.prefix .. 'expiring', 'XX', text(expires_at), id) end
  local latest_from = records.counted_from(call)
  records.change_window(call, id, record, {start_at = start_at, expires_at = expires_at,
    start_from = math.min(header.start_from, latest_from), end_from = math.min(header.end_from, latest_from)})
end

-- Tasks that had waited for batch slots.
local function mend_admitted(call, ids)
  local ahead = {}
  if #ids > 0 then task_options.read(call, ids) end
  for _, id in ipairs(ids) do
    if task_options.of(call, id).ready_at > call.now then ahead[#ahead + 1] = id end
  end
  task_options.note_ready(call, ahead)
end

local function mend_tasks(call, cursor)
  local page = redis.call('HSCAN', call.prefix .. 'tasks', cursor, 'COUNT', PAGE)
  local ids, found = {}, {}
  for i = 1, #page[2], 2 do
    if records.is_task(page[2][i + 1]) then ids[#ids + 1], found[#found + 1] = page[2][i], page[2][i + 1] end
  end
  if #ids > 0 then leases.read_runs(call, ids) end
  for i, id in ipairs(ids) do mend_task(call, id, found[i], leases.run_of(call, id)) end
  mend_admitted(call, ids)
  return page[1]
end

-- Dead letters that died in the future died now: a walk over them ends at the time at which it began.
local function mend_deaths(call)
  local ids = redis.call('ZRANGE', call.prefix .. 'deaths', '(' .. text(call.now), '+inf', 'BYSCORE', 'LIMIT', 0, PAGE)
  for _, id in ipairs(ids) do
    local death = DEATH.unpack(redis.call('HGET', call.prefix .. 'dead', id))
    death.died_at = call.now
    redis.call('HSET', call.prefix .. 'dead', id, DEATH.pack(death))
    places.list_dead(call, death.tenant, id, call.now)
  end
  return #ids < PAGE and '0' or '1'
end

local STEPS = {make_due('fires'), make_due('opening_changes'), mend_tasks, mend_deaths}

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
