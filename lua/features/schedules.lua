-- needs: accounts, arrivals, calls, close
--
-- Schedules: tasks that are enqueued at set times.
--
-- A schedule has two values. Its *revision*, a SCHEDULE, changes with every fire. The library does not read the timing:
-- servers compute cron and time zones, and send every next time. Its *template*, a TEMPLATE, is the task that a fire
-- enqueues; it does not change.
--
-- The revision is the token of a compare-and-set. A server reads the schedule, computes when it fires next, and sends
-- the revision that it has read. If several servers find a schedule due, or a call is repeated, the first call moves
-- `next_at`, and the others have an old revision. The task's id consists of the schedule's name and the time of the
-- fire.
--
-- An app may declare schedules in its code. Its workers declare them again and again, perhaps in several versions at
-- once, and `declared` has the time of the last declaration. After DECLARED_MS without one, a schedule may be declared
-- with other values, or is deleted when a worker declares others. So one version changes nothing that another one still
-- declares, and schedules stay while all workers are down. An app cannot change a schedule made by hand or by another
-- app.
--
-- Fires have a rate for each tenant over all queues, which only servers can count. When a server asks for due
-- schedules, it passes over tenants at their rate, so that their fires do not hide another tenant's.

local SKIP, ONCE = 0, 1               -- schedule.misfire: how to handle fires that were due while no server ran
local LATE_MS = 60000                 -- a fire that is later than this was missed
local SCHEDULES_PER_TENANT = 1000
local FIRES_PER_CALL = 100
local FIRES_PER_TENANT = 25  -- of these
local LOOKED, LOOKED_AT_ONCE = 10000, 1000  -- due fires that are examined, some of them passed over
local DECLARED_MS, NOTED_MS = 15000, 3000  -- how long a declaration counts, and how often it is noted at most
local APP_BYTES = 128

-- The key and field that have the revision of a schedule, <tenant>/<name>.
local function place_of(call, schedule_name)
  local tenant, name = schedule_name:match('^([^/]*)/(.*)$')
  return call.prefix .. 'schedules:' .. (tenant or ''), name or ''
end

-- A schedule, and its revision; false if there is none.
local function load_schedule(call, field)
  local revision = redis.call('HGET', place_of(call, field))
  return revision and SCHEDULE.unpack(revision), revision
end

local function save_schedule(call, field, schedule)
  local at, name = place_of(call, field)
  redis.call('HSET', at, name, SCHEDULE.pack(schedule))
  redis.call('ZADD', call.prefix .. 'fires', schedule.paused == 1 and '+inf' or schedule.next_at, field)
end

-- A template has no start, which the fire sets, and no batch, which would be complete one day.
local function check_template(call, template)
  local terms = arrivals.read_options(call, TEMPLATE.unpack(template).options)
  if terms.start_at > 0 then refuse('bad_request', 'start_at') end
  if terms.asked.batch ~= '' then refuse('bad_request', 'batch') end
  if terms.replace > 0 then refuse('bad_request', 'replace') end
end

local function read_moment(text) return check_whole(text, 'next_at', 1, HORIZON_MS) end

-- True if a worker has declared the schedule within DECLARED_MS.
local function is_declared(call, field)
  local at = redis.call('ZSCORE', call.prefix .. 'declared', field)
  return at and tonumber(at) > call.now - DECLARED_MS
end

local function note_declared(call, field)
  local at = tonumber(redis.call('ZSCORE', call.prefix .. 'declared', field) or 0)
  if at <= call.now - NOTED_MS or at > call.now then redis.call('ZADD', call.prefix .. 'declared', call.now, field) end
end

-- schedule(keys, argv): create a schedule, or change the one of that name; the same again changes nothing.
--   argv  3 tenant  4 name  5 next_at (ms; not used if the timing stays as it is)  6 misfire: 0 skip, 1 once  7 timing
--         8 template  9 the app that declares it (empty, or left out: it is made by hand)
--   out   "created" | "changed" | "same" | "kept" (a worker of the app still declares it with other values) | "other"
--         (it is not the app's), next_at_ms. A paused schedule stays paused.
function writes.schedule(keys, args)
  local call, next_at = calls.open_made(keys, args), read_moment(args[5])
  local misfire = check_whole(args[6], 'misfire', SKIP, ONCE)
  local tenant, name, timing, template = args[3], args[4], args[7], args[8]
  check_tenant(tenant)
  if #name > 63 or not name:find('^[a-z0-9][a-z0-9_-]*$') then refuse('bad_request', 'name') end
  check_template(call, template)
  local field, app = tenant .. '/' .. name, args[9] or ''
  if #app > APP_BYTES then refuse('bad_request', 'app') end
  local schedule = load_schedule(call, field)
  if schedule and app ~= '' and schedule.app ~= app then return {'other', schedule.next_at} end
  local outcome = schedule and 'changed' or 'created'
  if not schedule and redis.call('HLEN', call.prefix .. 'schedules:' .. tenant) >= SCHEDULES_PER_TENANT then
    refuse('too_large', 'name')
  end
  local is_same = schedule and schedule.misfire == misfire and schedule.timing == timing and schedule.app == app
  if is_same and redis.call('HGET', call.prefix .. 'templates', field) == template then
    if app ~= '' then note_declared(call, field) end
    return {'same', schedule.next_at}
  end
  if schedule and app ~= '' and is_declared(call, field) then return {'kept', schedule.next_at} end
  schedule = schedule or {paused = 0, last_fired_at = 0}
  if schedule.timing ~= timing then schedule.timing, schedule.next_at = timing, next_at end
  schedule.misfire, schedule.app = misfire, app
  local bytes = accounts.bytes_of(field, #template)
  if outcome == 'changed' then bytes = #template - redis.call('HSTRLEN', call.prefix .. 'templates', field) end
  arrivals.add_bytes(call, tenant, bytes)
  redis.call('HSET', call.prefix .. 'templates', field, template)
  save_schedule(call, field, schedule)
  if app ~= '' then note_declared(call, field) else redis.call('ZREM', call.prefix .. 'declared', field) end
  close.call(call)
  return {outcome, schedule.next_at}
end

-- unschedule(keys, argv): delete a schedule; its tasks go on.
--   argv  3 tenant  4 name  5 the app that no longer declares it (empty, or left out: it is deleted by hand)
--   out   "ok" | "gone" (there is none, or it is not the app's) | "kept" (a worker of the app still declares it)
function drains.unschedule(keys, args)
  local call, tenant, name, app = calls.open(keys, args), args[3], args[4], args[5] or ''
  local field = tenant .. '/' .. name
  if app ~= '' then
    local schedule = load_schedule(call, field)
    if not schedule or schedule.app ~= app then return 'gone' end
    if is_declared(call, field) then return 'kept' end
  end
  if redis.call('HDEL', call.prefix .. 'schedules:' .. tenant, name) == 0 then return 'gone' end
  local account = accounts.touch_named(call, tenant)
  accounts.add_bytes(call, account, -accounts.bytes_of(field, redis.call('HSTRLEN', call.prefix .. 'templates', field)))
  redis.call('HDEL', call.prefix .. 'templates', field)
  redis.call('ZREM', call.prefix .. 'fires', field)
  redis.call('ZREM', call.prefix .. 'declared', field)
  close.call(call)
  return 'ok'
end

-- pause_schedule(keys, argv): pause or resume a schedule; fires that it misses meanwhile are not made up for.
--   argv  3 tenant  4 name  5 revision, as read  6 when it fires next (ms); empty: it is paused
--   out   "ok" | "stale" (the revision has changed: read it again)
function drains.pause_schedule(keys, args)
  local call, next_at = calls.open(keys, args), args[6] ~= '' and read_moment(args[6])
  local field = args[3] .. '/' .. args[4]
  local schedule, revision = load_schedule(call, field)
  if not schedule or revision ~= args[5] then return 'stale' end
  schedule.paused, schedule.next_at = next_at and 0 or 1, next_at or schedule.next_at
  save_schedule(call, field, schedule)
  close.call(call)
  return 'ok'
end

-- Enqueues the task of a fire; returns its outcome.
local function enqueue_fire(call, field, due_at)
  local id, new = string.format('%s-%.0f', field, due_at), arrivals.new(field:match('^[^/]*'))
  if redis.call('HEXISTS', call.prefix .. 'tasks', id) == 1 then return 'duplicate' end
  local template = TEMPLATE.unpack(redis.call('HGET', call.prefix .. 'templates', field))
  local terms = arrivals.read_options(call, template.options, due_at)
  terms.start_at = due_at
  local outcome = arrivals.admit(call, new, id, template.payload, terms)
  if outcome == 'ok' and arrivals.exceeded(call, new) then outcome = 'quota_exceeded' end
  if outcome == 'ok' then arrivals.store(call, new) end
  call.fired_bytes = call.fired_bytes + #template.payload
  return outcome
end

local function fire_one(call, field, as_read, next_at)
  local schedule, revision = load_schedule(call, field)
  local at = tonumber(redis.call('ZSCORE', call.prefix .. 'fires', field) or math.huge)
  if not schedule or revision ~= as_read or at > call.now then return 'gone' end
  if schedule.next_at > call.now then  -- it was computed while the clock was ahead (verbs/jumps.lua)
    schedule.next_at = math.min(schedule.next_at, next_at)
    save_schedule(call, field, schedule)
    return 'moved'
  end
  if next_at <= schedule.next_at then return 'gone' end
  local due_at, outcome = schedule.next_at, 'misfire'
  if schedule.misfire == ONCE or call.now - due_at <= LATE_MS then
    outcome = enqueue_fire(call, field, due_at)
    if outcome == 'ok' then schedule.last_fired_at = due_at end
  end
  schedule.next_at = next_at
  save_schedule(call, field, schedule)
  return outcome
end

-- fire(keys, argv): enqueue the tasks of schedules that are due, each once, and move each to its next time.
--   argv  per fire (at most 100): <tenant>/<name>, revision, as read, next_at (ms)
--   out   per fire: "ok" | "duplicate" (the id is known) | "duplicate <id>" (another task, perhaps of an earlier fire,
--         holds its dedupe key: no task) | "misfire" (it is more than a minute late, and the schedule skips missed
--         fires: no task) | "expired" (its window, which counts from its start, is over: no task) | "quota_exceeded"
--         (the tenant has too much waiting: no task) | "gone" (it is not due, or the revision has changed: another
--         call fired it) | "later" (the fires before it have long payloads: it stays due) | "moved" (its time is in the
--         future, computed while the clock was ahead: it fires at next_at if that is earlier)
--         The task's id is <tenant>/<name>-<next_at of the revision>, and that is its start.
function writes.fire(keys, args)
  local call, outcomes, changed, moments = calls.open(keys, args), {}, false, {}
  if #args == 2 or (#args - 2) % 3 ~= 0 or #args > 2 + 3 * FIRES_PER_CALL then refuse('bad_request', 'fires') end
  for i = 5, #args, 3 do moments[#moments + 1] = read_moment(args[i]) end
  for n, next_at in ipairs(moments) do
    outcomes[n] = call.fired_bytes >= PAGE_BYTES and 'later' or fire_one(call, args[3 * n], args[3 * n + 1], next_at)
    changed = changed or outcomes[n] ~= 'gone' and outcomes[n] ~= 'later'
  end
  if changed then close.call(call) end
  return outcomes
end

local function row_of(call, field)
  return {field, (redis.call('HGET', place_of(call, field)))}
end

-- The due schedules, the earliest first: up to `count`, FIRES_PER_TENANT of each tenant, none of those in `passed`.
local function due_rows(call, count, passed)
  local rows, of_tenant = {}, {}
  for offset = 0, LOOKED - 1, LOOKED_AT_ONCE do
    local fields = redis.call('ZRANGE', call.prefix .. 'fires', '-inf', call.now, 'BYSCORE',
      'LIMIT', offset, LOOKED_AT_ONCE)
    for _, field in ipairs(fields) do
      local tenant = field:match('^[^/]*')
      local taken = of_tenant[tenant] or 0
      if not passed[tenant] and taken < FIRES_PER_TENANT then
        of_tenant[tenant] = taken + 1
        rows[#rows + 1] = row_of(call, field)
        if #rows == count then return rows end
      end
    end
    if #fields < LOOKED_AT_ONCE then break end
  end
  return rows
end

-- due_schedules(keys, argv): schedules that are due, of each tenant at most 25, and when the next one will be.
--   argv  3 count (1..100)  then tenants that are passed over
--   out   now_ms, next_ms (-1: none), then per schedule: {<tenant>/<name>, revision}. It looks at 10,000 that are due.
function reads.due_schedules(keys, args)
  local call, passed = calls.open(keys, args), {}
  local count = check_whole(args[3], 'count', 1, FIRES_PER_CALL)
  for i = 4, #args do passed[args[i]] = true end
  local next_at = redis.call('ZRANGE', call.prefix .. 'fires', '(' .. text(call.now), '(+inf', 'BYSCORE', 'LIMIT', 0, 1,
    'WITHSCORES')[2]
  return {call.now, tonumber(next_at or -1), unpack(due_rows(call, count, passed))}
end

-- declared(keys, argv): the schedules that an app has declared, those first that no worker has declared for longest.
--   argv  3 app
--   out   <tenant>/<name> each. It looks at 1,000 of all apps.
function reads.declared(keys, args)
  local call, found = {prefix = keys[1] .. ':'}, {}
  for _, field in ipairs(redis.call('ZRANGE', call.prefix .. 'declared', 0, LOOKED_AT_ONCE - 1)) do
    local schedule = load_schedule(call, field)
    if schedule and schedule.app == args[3] then found[#found + 1] = field end
  end
  return found
end

-- schedules(keys, argv): the schedules of a tenant (in no order), one of them, or a page of all, those first that fire
-- first and those that are paused last.
--   argv  3 tenant (empty: all)  4 name (empty: all of the tenant)  5 offset  6 count (of all: 1..500)
--   out   now_ms, then per schedule: {<tenant>/<name>, revision}; with a name: {<tenant>/<name>, revision, template}
function reads.schedules(keys, args)
  local call, tenant, name = calls.open(keys, args), args[3], args[4]
  local offset, count = check_whole(args[5], 'offset', 0, HORIZON_MS), check_whole(args[6], 'count', 1, TASKS_PER_CALL)
  local out, field = {call.now}, tenant .. '/' .. name
  if tenant == '' then
    local fields = redis.call('ZRANGE', call.prefix .. 'fires', offset, offset + count - 1)
    for i, each in ipairs(fields) do out[i + 1] = row_of(call, each) end
  elseif name == '' then
    local flat = redis.call('HGETALL', call.prefix .. 'schedules:' .. tenant)
    for i = 1, #flat, 2 do out[#out + 1] = {field .. flat[i], flat[i + 1]} end
  else
    local row = row_of(call, field)
    row[3] = redis.call('HGET', call.prefix .. 'templates', field)
    out[2] = row[2] and row or nil
  end
  return out
end
