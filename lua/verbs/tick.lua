-- needs: accounts, batch_ends, batches, calls, close, jumps, leases, limits, places, records, settlements,
-- task_options, waiting
--
-- The verb `tick`: changes that come with time. Any server may call it at any time. The jobs that have something to do
-- share its limit, so that a call is not longer when everything is due at once.

local TENANTS_PER_TICK = 8  -- tenants with tasks that a call promotes: a tenant is as much work as ten of its tasks
local LEAST_EACH = 20       -- tasks of a tenant
local MOVES_PER_TICK = 40   -- tasks that a call promotes
local LIGHT_PER_TICK = 125  -- entries that the light jobs trim, finish or let in
local ENDS_PER_TICK = 80    -- tasks that a call buries, reaps or deletes
local IDS_PER_TICK = 2000   -- ids of bundles that are searched for leases that have run out
local MARKS, SEATS = 4, 1   -- that cost as much as a task: forgotten marks, swept accounts
local LEAST_SEATS = 16      -- a page of fewer accounts is not worth its scan
local TURN_MS = 50          -- how long a server's turn to promote lasts after its tick
local OF_SERVERS = {fires = true, opening_changes = true}  -- jobs that a tick leaves to the servers

-- Moves due tasks to their tenants' ready lists. Each due tenant gets an equal part of the limit, of many the first
-- LEAST_EACH, and one that has more due tasks goes behind the other due tenants: a million tasks due at midnight delay
-- no other tenant's. Returns how many it moved, and whether it left any.
local function promote(call, limit)
  local due, later, gone, is_left = call.prefix .. 'due', {}, {}, false
  local names = redis.call('ZRANGE', due, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, TENANTS_PER_TICK + 1)
  if #names > TENANTS_PER_TICK then names[#names], is_left = nil, true end
  local details = redis.call('HMGET', call.prefix .. 'tenants', unpack(names))
  local each, moved = math.max(LEAST_EACH, math.floor(limit / #names)), 0
  accounts.read_of(call, details)
  for i, name in ipairs(names) do
    local most = math.min(each, limit - moved)
    if most == 0 then is_left = true break end
    local delayed, account = call.prefix .. 'delayed:' .. name, accounts.named(call, name, details[i])
    accounts.touch(call, account)
    local ids = redis.call('ZRANGE', delayed, '-inf', '(' .. text(call.now + 1), 'BYSCORE', 'LIMIT', 0, most + 1)
    local has_more = #ids > most
    if has_more then ids[#ids], is_left = nil, true end
    if #ids > 0 then
      redis.call('ZREMRANGEBYRANK', delayed, 0, #ids - 1)
      accounts.count(call, account, 'delayed', -#ids)
      places.put_ready(call, account, ids)
      moved = moved + #ids
    end
    local next_at = has_more and call.now or redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
    if next_at then later[#later + 1], later[#later + 2] = math.floor(next_at), name else gone[#gone + 1] = name end
  end
  write('ZADD', due, later)
  write('ZREM', due, gone)
  return moved, is_left
end

-- Buries waiting tasks that have expired.
local function expire(call, limit)
  local ids = redis.call('ZRANGE', call.prefix .. 'expiring', '-inf', call.sure, 'BYSCORE', 'LIMIT', 0, limit)
  redis.call('ZREM', call.prefix .. 'expiring', unpack(ids))
  local found = records.of(call, ids)
  leases.read_runs(call, ids)
  task_options.read(call, ids)
  for i, id in ipairs(ids) do
    if records.is_task(found[i]) then
      local account, run = accounts.touch_named(call, records.read(found[i]).tenant), leases.run_of(call, id)
      places.take_out(call, account, id)
      settlements.bury(call, account, id, run or places.NO_RUN, EXPIRED)
    end
  end
  return #ids
end

-- The tasks of a bundle that are still leased in it, and how many it had; a bundle without any is dropped.
local function live_in(call, number)
  local bundle = leases.bundle(call, number)
  local ids, live = bundle and leases.ids_of(bundle) or {}, {}
  if #ids > 0 then leases.read_runs(call, ids) end
  for _, id in ipairs(ids) do
    local lease = leases.lease_of(call, id)
    if lease and lease.lease == number and lease.is_extended == 0 and leases.is_leased(lease.state) then
      live[#live + 1] = id
    end
  end
  if #live == 0 then leases.drop_unextended(call, number) end
  return live, #ids
end

local function past_deadline(call, name, limit)
  return redis.call('ZRANGE', call.prefix .. name, '-inf', call.at, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
end

-- The leases that have run out, and the deadline of each: at most `limit`, first those of bundles, then extended ones,
-- the oldest first.
local function overdue_leases(call, limit)
  local overdue, deadlines, looked = {}, {}, 0
  local bundles, extended = past_deadline(call, 'leases', limit), past_deadline(call, 'extended', limit)
  for i = 1, #bundles, 2 do
    if #overdue < limit and looked < IDS_PER_TICK then
      local live, count = live_in(call, tonumber(bundles[i]))
      looked = looked + count
      for _, id in ipairs(live) do overdue[#overdue + 1], deadlines[id] = id, bundles[i + 1] end
    end
  end
  for i = 1, #extended, 2 do overdue[#overdue + 1], deadlines[extended[i]] = extended[i], extended[i + 1] end
  overdue = {unpack(overdue, 1, math.min(limit, #overdue))}
  leases.read_runs(call, overdue)
  return overdue, deadlines
end

-- Takes back leases that have run out. They are charged up to their last renewal. Returns how many, and id, number and
-- attempt of each.
local function reap(call, limit)
  local overdue, deadlines = overdue_leases(call, limit)
  local ended = {}
  for i = #overdue, 1, -1 do  -- the oldest ends up at the head
    local lease = leases.lease_of(call, overdue[i])
    settlements.settle(call, 'reap', overdue[i], nil, nil, {}, 0, deadlines[overdue[i]] - (lease and lease.lasts or 0))
    if lease then ended[#ended + 1], ended[#ended + 2], ended[#ended + 3] = overdue[i], lease.lease, lease.attempt end
  end
  return #overdue, ended
end

local function drop_dead(call, ids)
  if #ids == 0 then return 0 end
  for i, death in ipairs(redis.call('HMGET', call.prefix .. 'dead', unpack(ids))) do
    places.drop_letter(call, ids[i], death)
  end
  return #ids
end

-- Forgets batches that have been complete for long enough.
local function trim_batches(call, limit)
  local last = call.sure - BATCH_KEEP_MS
  local ids = redis.call('ZRANGE', call.prefix .. 'completed', '-inf', last, 'BYSCORE', 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do batch_ends.forget(call, id, batches.find(call, id)) end
  redis.call('HDEL', call.prefix .. 'batches', unpack(ids))
  redis.call('ZREM', call.prefix .. 'completed', unpack(ids))
end

-- The oldest dead letters of the tenant that has most of them: up to `limit`, and no more than its lead over the next.
local function oldest_of_most(call, limit)
  local most = redis.call('ZRANGE', call.prefix .. 'dead_counts', 0, 1, 'REV', 'WITHSCORES')
  if not most[1] then return most end
  local count = math.max(1, math.min(limit, most[2] - (most[4] or 0)))
  return redis.call('ZRANGE', call.prefix .. 'deaths:' .. most[1], 0, count - 1)
end

-- Deletes dead letters that are too old; then, while there are too many, the oldest of the tenant that has most. So one
-- tenant's flood of dead letters does not push out another's.
local function trim_dead(call, limit)
  local queue, deaths = call.queue, call.prefix .. 'deaths'
  local ids = redis.call('ZRANGE', deaths, '-inf', call.sure - queue.dead_keep_ms, 'BYSCORE', 'LIMIT', 0, limit)
  local trimmed = drop_dead(call, ids)
  while trimmed < limit and queue.dead > queue.dead_keep do
    local count = drop_dead(call, oldest_of_most(call, math.min(limit - trimmed, queue.dead - queue.dead_keep)))
    if count == 0 then break end  -- guards against an endless loop if the counts are wrong
    trimmed = trimmed + count
  end
  return trimmed
end

-- When a server may promote what is due: now, or after the turn of another. One at a time promotes what its ticks leave
-- due, so that no caller waits behind the ticks of several.
local function turn_of(call, server)
  local until_ms, holder = (redis.call('GET', call.prefix .. 'promoter') or ''):match('^(%d+) (.*)$')
  local wait = until_ms and holder ~= server and until_ms - call.now or 0
  return wait > 0 and wait <= TURN_MS and call.now + wait or call.now
end

local function keep_turn(call, server)
  local held = string.format('%.0f %s', call.now + TURN_MS, server)
  redis.call('SET', call.prefix .. 'promoter', held, 'PX', TURN_MS + KEY_GRACE_MS)
end

-- When each job next has something to do. Jobs that need a confirmed time wait while the store's clock is ahead.
local function look_ahead(call, server)
  local queue, ahead, times = call.queue, call.now - call.sure, {}
  for name, wait in pairs({due = 0, leases = queue.origin, extended = queue.origin, fires = 0, parked = 0,
      opening_changes = 0, cancelling = 0, expiring = ahead, ends = ahead, deaths = queue.dead_keep_ms + ahead,
      completed = BATCH_KEEP_MS + ahead}) do
    local first = redis.call('ZRANGE', call.prefix .. name, 0, 0, 'WITHSCORES')[2]
    times[name] = first and tonumber(first) + wait
  end
  if server ~= '' and times.due and times.due <= call.now then times.due = turn_of(call, server) end
  if queue.remembered > 0 then times.marks = records.next_trim_at(queue) + ahead end
  if queue.dead > queue.dead_keep then times.deaths = call.now end
  if queue.sweeping ~= NO_SWEEP then times.sweep = call.now end
  return times
end

-- The jobs that have something to do now, and how many they are (1 at least; those of servers do not count).
local function due_jobs(call, server)
  local is_due, count = {}, 0
  for name, at in pairs(look_ahead(call, server)) do
    is_due[name] = at <= call.now
    if is_due[name] and not OF_SERVERS[name] then count = count + 1 end
  end
  return is_due, math.max(count, 1)
end

-- When a tick next finds something to do (-1: nothing waits).
local function next_due(call, server)
  local earliest = math.huge
  for _, at in pairs(look_ahead(call, server)) do earliest = math.min(earliest, at) end
  return earliest == math.huge and -1 or math.max(earliest, call.now)
end

local function count_due(call, name)
  return redis.call('ZCOUNT', call.prefix .. name, '-inf', call.now)
end

-- tick(keys, argv): promote due tasks, bury expired ones, reap leases that have run out; trim dead letters, complete
-- batches, marks, results and dedupe keys that were kept for long enough; cancel what is left of cancelled batches;
-- let in tenants that have tokens again.
--   argv  3 limit: tasks (1..500), shared by the jobs that have something to do  4 the server's own time in ms (may
--         be empty or left out): while the store's clock is more than a minute ahead of it, nothing expires and nothing
--         is trimmed  5 the server (may be empty or left out): if its tick leaves due tasks, no other server promotes
--         any for a while
--   out   now_ms, next_due_ms (when a tick will next find work; now if this one left some; -1 if nothing waits),
--         ready (tasks), promoted, expired, reaped, trimmed, fires (schedules that are due: see `fire`), changes
--         (of opening hours: see `set_opening_hours`), a list of the leases that were reaped: id, number, attempt; and
--         if it is a partition and a tenant begins to wait: the weight of the tenants that compete there
--         A tick that finds nothing writes nothing.
function drains.tick(keys, args)
  local call, limit = calls.open(keys, args), check_whole(args[3], 'limit', 1, TASKS_PER_CALL)
  calls.confirm(call, args[4])
  local server = args[5] or ''
  jumps.begin(call)
  local is_due, jobs = due_jobs(call, server)
  local function part_of(most) return math.ceil(math.min(limit, most) / jobs) end
  local part, ends = part_of(LIGHT_PER_TICK), part_of(ENDS_PER_TICK)
  local promoted, expired, reaped, trimmed, is_left, lost = 0, 0, 0, 0, false, {}
  if is_due.ends then task_options.trim_ends(call, part) end
  if is_due.due then promoted, is_left = promote(call, part_of(MOVES_PER_TICK)) end
  if is_left and server ~= '' then keep_turn(call, server) end
  if is_due.expiring then expired = expire(call, ends) end
  if is_due.leases or is_due.extended then reaped, lost = reap(call, ends) end
  if is_due.deaths or expired + reaped > 0 then trimmed = trim_dead(call, ends) end
  if is_due.parked then limits.unpark(call, part) end
  limits.sweep(call, math.max(LEAST_SEATS, SEATS * part))
  if is_due.sweep then jumps.mend(call) end
  leases.write(call)  -- the next jobs read runs again
  waiting.cancel_members(call, math.min(ends, CHANGES_PER_CALL))
  batch_ends.finish(call)
  if is_due.completed then trim_batches(call, part) end
  leases.write(call)
  records.trim_marks(call, MARKS * part)
  if #call.touched > 0 or call.messages or call.is_changed then close.call(call) end
  local next_at = is_left and call.now or next_due(call, server)
  return {call.now, next_at, call.queue.ready, promoted, expired, reaped, trimmed,
    is_due.fires and count_due(call, 'fires') or 0,
    is_due.opening_changes and count_due(call, 'opening_changes') or 0, lost,
    call.to_wake and close.competing_weight(call) or nil}
end
