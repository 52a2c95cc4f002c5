-- Words that every section shares: one call's context, its clock and its dice.
--
-- The sections are joined in order into one function library (fairq/store/library.py). Nothing at the top level
-- may change after load: a mutable local would live on between calls, differ from node to node and be lost on
-- failover. All that a call learns or changes stands in its `call` table; `open` makes it and `close` writes it
-- back, each touched value once.
--
-- KEYS[1] of every function is the queue's prefix, `fq:{<queue>/<partition>}`; all other keys are computed from
-- it and share its hash tag (KEYS.md). ARGV[1] is the time in ms and ARGV[2] the dice, packed doubles in [0, 1);
-- both are empty in production (the store's TIME, math.random) and honoured only where the test gate key stands.
--
-- Validate first, write last: `refuse` may be called only before the first write.

local verbs = {}  -- the functions that callers may call, by name; 99_register.lua tells the store of them

local QUEUE_FORMAT = '<ddddddddddddddddddddddddddddddddddddddd'  -- fields in the order of load_queue
local TENANT_FORMAT = '<dddddddddddddddddIbBBBBB'  -- fields in the order of new_tenant
local ACCOUNT_FORMAT = '<dddddd'                -- the head of TENANT_FORMAT: what a draw asks
local TENANT_BYTES = 146                        -- of TENANT_FORMAT; a tail may follow
local RUN_FORMAT = '<IIHBdddBc0Bc0Hc0'          -- fields in the order of load_run
local LEASE_FORMAT = '<IIHBdddBc0'              -- the head of RUN_FORMAT: a lease without its worker and error
local HEADER_FORMAT = '<BHdddBc0'               -- a task's record is this header followed by the payload
local HEADER_BYTES = 28                         -- of that, up to the tenant's name
local DEATH_FORMAT = '<BIddBc0Hc0'              -- reason, attempts, lease, died_at_ms, tenant, error
local EXTRAS_FORMAT = '<BddBBc0Bc0'              -- fields in the order of unpack_extras
local OPTIONS_FORMAT = '<ddddHBddBBc0Bc0'       -- fields in the order of read_options
local LIMITS_FORMAT = '<dddddddd'               -- fields in the order of limits.names
local BATCH_FORMAT = '<ddddddddddBBBc0Hc0Hc0Hc0'  -- fields in the order of unpack_batch
local RECORD_VERSION = 1

local DEFAULT_WEIGHT = 1000     -- weights are kept in thousandths, as integers, so that sums cannot drift
local OUT, AWAKE = 0, -1        -- tenant.slot: in no structure, on the wake list, else its slot in the class
local SHARE_TIME, SHARE_COUNT = 0, 1
local UNMADE, MADE, DELETING = 0, 1, 2  -- queue.stage: see 67_delete.lua
-- run.state: leased (and perhaps asked to stop), or how the last lease ended (told apart for who settles twice: see
-- `refusal`)
local LEASED, SETTLED, REAPED, STOPPING = 0, 1, 2, 3
local REASONS = {'exhausted', 'rejected', 'expired', 'lease_lost'}
local EXHAUSTED, REJECTED, EXPIRED, LEASE_LOST = 1, 2, 3, 4
local CLOCK_BACK_MS = 60000     -- a clock that goes back by more was ahead before
local DONE_WINDOW_MS = 60000    -- settled ids are remembered for one to two of these windows
local TASKS_PER_CALL = 500
local PAGE_BYTES = 1048576  -- of records and errors in one reply, its last entry not counted
local VOIDS_PER_CALL = 1000     -- void entries that one call passes over before it leaves the rest to the next
local ERROR_BYTES = 2048        -- of an error message, what is kept
local HORIZON_MS = 2 ^ 52       -- no time and no delay may lie beyond it, so that sums stay exact

local function refuse(code, field)
  error({err = 'FAIRQ ' .. code .. ' ' .. field})
end

local function check_tenant(name)
  if #name > 128 or not name:find('^[%w._@+-]+$') then refuse('bad_request', 'tenant') end
end

local function check_whole(given, field, lowest, highest)
  local number = tonumber(given)
  if not number or number < lowest or number > highest or number % 1 ~= 0 then refuse('bad_request', field) end
  return number
end

-- The arguments from `first` on, which are ids: at most 500, each once.
local function ids_in(args, first)
  local ids, seen = {}, {}
  for i = first, #args do
    if seen[args[i]] then refuse('bad_request', 'ids') end
    ids[#ids + 1], seen[args[i]] = args[i], true
  end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'ids') end
  return ids
end

local function text(number)
  return string.format('%.17g', number)
end

local function key(call, name)
  return call.prefix .. ':' .. name
end

-- A command of many arguments (or none), in parts: Lua cannot unpack more than some 8,000 values at once.
local function write(command, at, values)
  for first = 1, #values, 2000 do
    redis.call(command, at, unpack(values, first, math.min(first + 1999, #values)))
  end
end

local function new_queue()
  return {
    now = 0, clock = 0, weight_sum = 0, hungry = 0, barred = 0, epoch = 0, share = SHARE_TIME, lease_ms = 30000,
    max_attempts = 5, retry_base_ms = 1000, retry_cap_ms = 3600000, dead_keep_ms = 14 * 86400000, dead_keep = 100000,
    estimate = 0, ready = 0, delayed = 0, leased = 0, dead = 0, enqueued = 0, done = 0, buried = 0, expired = 0,
    cancelled = 0, special = 0, held = 0, limited = 0, events_keep = 10000, running = 0, servable = 0, cursor = 0,
    origin = 0, epoch_at = 0, estimate_sq = 0, sweeping = 0, anchored = 0, level = 0, last_lease = 0, stage = UNMADE,
    kept_until = 0, classes = {},
  }
end

local function load_queue(prefix)
  local packed = redis.call('GET', prefix .. ':queue')
  if not packed then return new_queue() end
  local q, position = {classes = {}}, nil
  q.now, q.clock, q.weight_sum, q.hungry, q.barred, q.epoch, q.share, q.lease_ms, q.max_attempts, q.retry_base_ms,
    q.retry_cap_ms, q.dead_keep_ms, q.dead_keep, q.estimate, q.ready, q.delayed, q.leased, q.dead, q.enqueued, q.done,
    q.buried, q.expired, q.cancelled, q.special, q.held, q.limited, q.events_keep, q.running, q.servable, q.cursor,
    q.origin, q.epoch_at, q.estimate_sq, q.sweeping, q.anchored, q.level, q.last_lease, q.stage, q.kept_until,
    position =
    struct.unpack(QUEUE_FORMAT, packed)
  while position <= #packed do  -- the tail: (class, tenants in it), for classes that have any
    local class, count
    class, count, position = struct.unpack('<dd', packed, position)
    q.classes[class] = count
  end
  return q
end

local function pack_queue(q)
  local parts = {struct.pack(QUEUE_FORMAT, q.now, q.clock, q.weight_sum, q.hungry, q.barred, q.epoch, q.share,
    q.lease_ms, q.max_attempts, q.retry_base_ms, q.retry_cap_ms, q.dead_keep_ms, q.dead_keep, q.estimate, q.ready,
    q.delayed, q.leased, q.dead, q.enqueued, q.done, q.buried, q.expired, q.cancelled, q.special,
    q.held, q.limited, q.events_keep, q.running, q.servable, q.cursor, q.origin, q.epoch_at,
    q.estimate_sq, q.sweeping, q.anchored, q.level, q.last_lease, q.stage, q.kept_until)}
  for class, count in pairs(q.classes) do
    if count > 0 then parts[#parts + 1] = struct.pack('<dd', class, count) end
  end
  return table.concat(parts)
end

local function clock_ms(call, given)
  if given ~= '' or call.dice ~= '' then
    if redis.call('EXISTS', key(call, 'test')) == 0 then refuse('forbidden', 'now') end
  end
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The time of the call: that of the store, but never before the last change, so that nothing happens twice. Where the
-- store's clock was far ahead and is set right, the queue would stand still until then; so it goes back too. Its
-- accounts do not see that, since they count from the origin, which moves as far; deadlines of leases are pulled in by
-- ticks.
local function set_time(call, time)
  local q = call.queue
  local back = q.now - time
  if back > CLOCK_BACK_MS then q.now, q.origin, q.anchored = time, q.origin - back, 1 end
  call.now = math.max(time, q.now)
end

-- Moves the queue's clock to now: what all that compete have had since the last change, over their weights.
local function move_clock(call)
  local q = call.queue
  if q.origin == 0 then q.origin = call.now end
  if q.share == SHARE_TIME and q.weight_sum > 0 then
    local moved = (call.now - q.now) * q.running / q.weight_sum
    q.clock, q.level = q.clock + moved, q.level + moved
  end
  call.at = call.now - q.origin
end

-- Opens a call on a queue of any stage: reads the queue's state and the time.
local function open_any(keys, args)
  local call = {
    prefix = keys[1], dice = args[2], die = 1,
    packed = {}, accounts = {}, tenants = {}, touched = {}, woken = {}, slots = {},  -- the fair pick's (10_tenants.lua)
    limits = {}, kept = {}, parked = {},                               -- what bounds tenants (09_limits.lua)
    extras = {}, batches = {}, told = {},                              -- what few tasks ask for (17, 18)
    runs = {}, changed = {}, ended = {}, forgotten = {}, done = {},    -- ended leases (40_settle.lua)
    taken = {}, void_marks = {}, voids = 0,                            -- entries of lists (28_take.lua)
    messages = {},                                                     -- to be published when all is written
  }
  call.queue = load_queue(call.prefix)
  set_time(call, clock_ms(call, args[1]))
  move_clock(call)
  return call
end

-- Opens a call; a queue that is being deleted answers none.
local function open(keys, args)
  local call = open_any(keys, args)
  if call.queue.stage == DELETING then refuse('deleting', 'queue') end
  return call
end

-- Opens a call that puts something into the queue, which must have been made before (`make_queue`).
local function open_made(keys, args)
  local call = open(keys, args)
  if call.queue.stage == UNMADE then refuse('unmade', 'queue') end
  return call
end

-- Has a hint published when all is written.
local function announce(call, message)
  call.messages[#call.messages + 1] = message
end

-- Publishes the call's hints. It is the last thing that a call does, and may fail: hints may be lost, tasks may not.
local function publish(call)
  for _, message in ipairs(call.messages) do redis.pcall('SPUBLISH', key(call, 'ready'), message) end
end

-- A number in [0, 1) with 53 random bits, or the test's next one.
local function random(call)
  if call.dice == '' then
    return (math.random(0, 67108863) * 134217728 + math.random(0, 134217727)) / 9007199254740992
  end
  if call.die > #call.dice then refuse('bad_request', 'dice') end
  local drawn
  drawn, call.die = struct.unpack('<d', call.dice, call.die)
  return drawn
end
