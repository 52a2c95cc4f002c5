-- The context of one call: the data that it has read and changed, its clock and its random numbers.
--
-- A call has four times:
--
--   call.now     the store's time, which steps back only by more than a minute: starts of tasks, and times in replies
--   call.at      the same since `queue.origin`, without jumps of the clock: leases and accounts
--   call.sure    confirmed by the calling server's clock: expiry, and deletion of records that were kept long enough
--   queue.now    `call.now` of the last call that changed anything

local CLOCK_BACK_MS = 60000  -- a clock that goes back by more was ahead before; one that is ahead by more is wrong

local OF_QUEUE = {__index = DEFAULTS}  -- settings that a queue has not set

-- The settings that a queue has set, by name; some may be of a later version.
function calls.own_settings(queue)
  return queue.settings == '' and {} or cmsgpack.unpack(queue.settings)
end

function calls.load_queue(prefix)
  local packed = redis.call('GET', prefix .. ':queue')
  local queue = packed and QUEUE.unpack(packed) or QUEUE.new{}
  if queue.settings ~= '' then
    for name, value in pairs(calls.own_settings(queue)) do
      if DEFAULTS[name] then queue[name] = value end
    end
  end
  return setmetatable(queue, OF_QUEUE)
end

-- How many tenants the classes have, by class.
function calls.classes_of(call)
  local classes = call.classes
  if not classes then
    local packed, position, class, count = call.queue.classes, 1, nil, nil
    classes = {}
    while position <= #packed do
      class, count, position = struct.unpack(CLASS.format, packed, position)
      classes[class] = count
    end
    call.classes = classes
  end
  return classes
end

function calls.save_queue(call)
  local queue = call.queue
  if call.moved_tags then
    queue.classes = ''
    for class, count in pairs(call.classes) do
      if count > 0 then queue.classes = queue.classes .. struct.pack(CLASS.format, class, count) end
    end
  end
  redis.call('SET', call.prefix .. 'queue', QUEUE.pack(queue))
end

function calls.clock_ms(call, given)
  if given ~= '' or call.random_values ~= '' then
    if redis.call('EXISTS', call.prefix .. 'test') == 0 then refuse('forbidden', 'now') end
  end
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- How much of the time since the last change is a jump, which counts as no service. While leases run, a change comes at
-- least once in the longest time that one lasts, since workers renew them. Time beyond that, and beyond the last
-- deadline (leases given while lease_ms was longer last longer), is a jump: the clock was set ahead, or the machine or
-- the service stood still. During a repair all of it is.
local function length_of_jump(call, time)
  local queue = call.queue
  local jump = time - queue.now
  if queue.blocked >= BLOCKED_REPAIR then return jump end
  jump = jump - math.max(queue.lease_ms, CLOCK_BACK_MS)
  for _, name in ipairs({'leases', 'extended'}) do
    local last = redis.call('ZRANGE', call.prefix .. name, 0, 0, 'REV', 'WITHSCORES')[2]
    jump = math.min(jump, time - (last and last + queue.origin or queue.now))
  end
  return jump
end

-- Sets the time of the call: the store's, but no earlier than the queue's last change, so that nothing happens twice.
-- If the store's clock was far ahead and is set right, that would halt the queue for as long; so the queue's time goes
-- back too. Ticks then look anew for each tenant's first delayed task, and correct delays that were computed meanwhile
-- (verbs/jumps.lua).
--
-- Accounts and leases see no jump: their times count from the origin, which moves along, back and ahead.
local function set_time(call, time)
  local queue = call.queue
  local passed = time - queue.now
  if passed < -CLOCK_BACK_MS then
    queue.now, queue.origin, queue.sweeping = time, queue.origin + passed, WENT_BACK
  elseif passed > CLOCK_BACK_MS and queue.leased > 0 or queue.blocked >= BLOCKED_REPAIR then
    local jump = math.max(length_of_jump(call, time), 0)
    queue.now, queue.origin = queue.now + jump, queue.origin + jump
  end
  call.now = time > queue.now and time or queue.now
end

-- Sets the time by which the call may delete for good (expired tasks, entries kept for long enough): the store's, but
-- at most a minute after the calling server's clock, its witness (empty: none). So a store's clock that is far ahead
-- lets no task expire.
function calls.confirm(call, witness)
  call.sure = call.now
  if witness and witness ~= '' then
    call.sure = math.min(call.now, check_whole(witness, 'witness', 0, HORIZON_MS) + CLOCK_BACK_MS)
  end
end

-- Moves the queue's virtual clock, and with it the entitlement of all tenants that compete.
function calls.move_clock(queue, by)
  queue.clock, queue.level, queue.entitled = queue.clock + by, queue.level + by, queue.entitled + by * queue.weight_sum
end

-- Counts the time since the last change: leases that run are service, and the virtual clock moves by the worker time
-- that competing tenants have had, over the sum of their weights.
local function count_time(call)
  local queue = call.queue
  if queue.origin == 0 then queue.origin = call.now end
  if queue.share == SHARE_TIME then
    local passed = call.now - queue.now
    queue.delivered = queue.delivered + passed * queue.leased
    if queue.weight_sum > 0 then calls.move_clock(queue, passed * queue.running / queue.weight_sum) end
  end
  call.at = call.now - queue.origin
end

-- Fields that only some calls set, and their defaults.
local OF_CALL = {__index = {
  next_random = 1,                                -- of the test's random values
  classes = false,                                -- calls.classes_of
  details = false,                                -- of tenants, packed, by name (pick/accounts.lua)
  limits = false, parked = false, kept_out = false, unpark_at = false, costly = 0,  -- bounds (pick/limits.lua)
  to_wake = false,                                -- tags that go onto the wake list at the close (pick/seats.lua)
  wake = false, passed_over = false,              -- what a claim has read of that list, and accounts not to serve
  proven_slots = 0,                               -- slots that there are at least (pick/reserve.lua)
  notify = '1',                                   -- the servers to notify: all, one first, or (false) none
  task_options = false, batches = false,          -- rare options of tasks
  marks = false,                                  -- tasks that have ended (tasks/records.lua)
  incoming_bytes = 0,                             -- of new tasks, until they are stored (tasks/arrivals.lua)
  ending = false,                                 -- the task that this call acknowledges, with links
  changed_runs = false, extended = false, ended = false,  -- leases (tasks/leases.lua)
  lines = false,                                  -- turns of groups inside tenants (tasks/group_order.lua)
  fired_bytes = 0,                                -- payloads of schedules (features/schedules.lua)
  lowered = false,                                -- the level before lost leases lowered it, and their tenants
  is_changed = false,                             -- whether it changed anything outside the tenants' accounts
  messages = false,                               -- to be published when all is written
}}

-- Opens a call on a queue of any stage: reads the queue's state and the time. All fields that sections keep in a call
-- are listed here and above.
function calls.open_any(keys, args)
  local call = setmetatable({
    prefix = keys[1] .. ':', random_values = args[2], queue = calls.load_queue(keys[1]), now = 0, at = 0, sure = 0,
    mean = 0,
    packed = {}, accounts = {}, books = {}, named = {},  -- tenants (pick/accounts.lua)
    touched = {},                                 -- their tags, and by tag whether one stays in its seat, being packed
    moved_tags = false,                           -- changed tags, by class and slot (pick/seats.lua)
    runs = {}, bundles = {},                      -- leases (tasks/leases.lua)
    taken = {},                                   -- how many ids of which keys (tasks/takes.lua)
    readied = false, freed = false,               -- whether claims may find more than before (pick/close.lua)
  }, OF_CALL)
  set_time(call, calls.clock_ms(call, args[1]))
  count_time(call)
  local queue = call.queue
  if queue.estimate > 0 then call.mean = queue.estimate_sq / queue.estimate end
  return call
end

function calls.refuse_in_repair(call)
  if call.queue.blocked >= BLOCKED_REPAIR then refuse('repairing', 'queue') end
end

-- Opens a call that is carried out during a repair too: questions, claims (which then give nothing) and the repair
-- itself. A queue that is being deleted refuses it.
function calls.ask(keys, args)
  local call = calls.open_any(keys, args)
  if call.queue.stage == DELETING then refuse('deleting', 'queue') end
  return call
end

-- Opens a call that a repair refuses.
function calls.open(keys, args)
  local call = calls.ask(keys, args)
  calls.refuse_in_repair(call)
  return call
end

-- Opens a call that stores something in the queue, which must have been made before (`make_queue`).
function calls.open_made(keys, args)
  local call = calls.open(keys, args)
  if call.queue.stage == UNMADE then refuse('unmade', 'queue') end
  return call
end

-- The store's run id: cursors are good for one life of one store.
function calls.life_of_store()
  return redis.call('INFO', 'server'):match('run_id:(%w+)')
end

-- Scans about `count` keys of the store. Deletes the queue's keys with names (without the prefix) that are doomed.
-- Returns the next cursor.
function calls.unlink_some(call, cursor, count, is_doomed)
  local page, doomed = redis.call('SCAN', cursor, 'MATCH', call.prefix .. '*', 'COUNT', count), {}
  for _, found in ipairs(page[2]) do
    if is_doomed(found:sub(#call.prefix + 1)) then doomed[#doomed + 1] = found end
  end
  if #doomed > 0 then redis.call('UNLINK', unpack(doomed)) end
  return page[1]
end

-- Publishes a notification once, when all is written.
function calls.announce(call, message)
  local messages = table_in(call, 'messages')
  if not messages[message] then messages[message], messages[#messages + 1] = true, message end
end

-- Publishes the call's notifications. It is the last thing that a call does, and may fail: they may be lost, tasks
-- may not.
function calls.publish(call)
  for _, message in ipairs(call.messages) do redis.pcall('SPUBLISH', call.prefix .. 'ready', message) end
end

-- A number in [0, 1) with 53 random bits, or the test's next one.
function calls.random(call)
  if call.random_values == '' then
    return (math.random(0, 67108863) * 134217728 + math.random(0, 134217727)) / 9007199254740992
  end
  if call.next_random > #call.random_values then refuse('bad_request', 'random_values') end
  local drawn
  drawn, call.next_random = struct.unpack('<d', call.random_values, call.next_random)
  return drawn
end
