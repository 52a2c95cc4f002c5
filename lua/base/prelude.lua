-- Constants and functions that all sections share.
--
-- The sections are joined into one function library (fairq/store/library.py), each as a block of its own. A section
-- exports a table of its name, which the loader makes: `function draws.take` is in draws.lua. It begins with the names
-- of the sections that it `needs`, and comes behind them. Only this section and formats.lua export more, and all others
-- need them implicitly. Nothing at the top level may change after load: a mutable local would live on between calls,
-- differ from node to node and be lost on failover. The state of a call is in its `call` table (base/calls.lua).
--
-- The verbs are the functions of three tables. `reads` change nothing, and run on replicas too. `writes` are refused as
-- a whole when the store is full. `drains` run then too, so that existing tasks go on. A comment above each verb lists
-- its arguments and its reply.
--
-- All take one key, the queue's prefix (KEYS.md). ARGV[1] is the time in ms and ARGV[2] the random values, packed
-- doubles in [0, 1); both are empty in production (the store's TIME, math.random) and used only where `test` stands.
--
-- Validate first, write last: `refuse` may be called only before the first write.

local SHARE_TIME, SHARE_COUNT = 0, 1
-- setting of a queue -> its default; fairq/wire/VERBS.md says what each means. `partitions` is here only so that the
-- version of the settings covers it (base/versions.lua): the registry has how many there are (service/registry.lua).
local DEFAULTS = {
  share = SHARE_TIME, lease_ms = 30000, max_attempts = 25, retry_base_ms = 1000, retry_cap_ms = 3600000, reserve = 0,
  dead_keep_ms = 1209600000, dead_keep = 100000, events_keep = 10000, max_tenants = 1000000, run_timeout_ms = 0,
  queue_weight = 1000, max_lost_leases = 3, partitions = 1,
}
-- setting -> its least and its greatest value; all are whole numbers, queue_weight in thousandths.
local BOUNDS = {
  share = {SHARE_TIME, SHARE_COUNT}, lease_ms = {100, 86400000}, max_attempts = {0, 1000}, reserve = {0, 90},
  retry_base_ms = {1, 86400000}, retry_cap_ms = {1, 604800000}, dead_keep_ms = {1000, 31536000000},
  dead_keep = {0, 10000000}, events_keep = {0, 1000000}, max_tenants = {1, 100000000}, run_timeout_ms = {0, 604800000},
  queue_weight = {1, 10000000}, max_lost_leases = {0, 100}, partitions = {1, 64},
}
local UNMADE, MADE, DELETING = 0, 1, 2  -- queue.stage: see operate/delete.lua
local NO_SWEEP, SWEEPING, SWEEP_WANTED, WENT_BACK = 0, 1, 2, 3  -- queue.sweeping: see limits.sweep, verbs/jumps.lua
local REASONS = {'exhausted', 'rejected', 'expired', 'lease_lost'}
local EXHAUSTED, REJECTED, EXPIRED, LEASE_LOST = 1, 2, 3, 4
local TASKS_PER_CALL = 500
local CHANGES_PER_CALL = 64  -- tasks: each may touch a tenant, batch, list, feed and dedupe key of its own
local COSTLY_PER_CALL = 60  -- tokens, and tenants with groups, after which a claim leaves the rest to the next
local PAGE_BYTES = 1048576  -- of payloads, errors and tracebacks for one reply, its last entry not counted
local ERROR_BYTES = 2048    -- kept of an error message
local TRACEBACK_BYTES = 8192  -- kept of a dead letter's traceback
local ID_BYTES = 255
local HORIZON_MS = 2 ^ 52   -- the largest time and delay, so that sums stay exact
local BLOCKED_PAUSED, BLOCKED_CLOSED, BLOCKED_RATE = 1, 2, 4  -- bits of details.blocked and queue.blocked
local CAUSE_MAX_RUNNING = 8      -- another value of details.cause: the tenant is at its max_running
local BLOCKED_REPAIR = 16        -- of queue.blocked, the highest bit: a repair is under way (operate/repair.lua)
local UNSET = -1                 -- of a tenant's limit: the default for all tenants applies
local OUT, AWAKE = 0, -1         -- account.slot: in no structure, on the wake list, else its slot in the class
local ELIGIBLE, COMPETES = 1, 2  -- account.standing, see pick/README.md; 0: it is not eligible
local MAX_PRIORITY = 99
local HAS_OPTIONS, END_MOVES, IS_LARGE = 1, 2, 4  -- bits of `features`; that of large payloads is the highest
local KEY_GRACE_MS = 60000       -- a TTL is longer by this than the time in the key, which functions look at
local OPENED, CLOSED, COMPLETE = 0, 1, 2  -- batch.state
local CALLBACKS = {'complete', 'success', 'death'}  -- of a batch
local BATCH_STATES = {[OPENED] = 'open', [CLOSED] = 'closed', [COMPLETE] = 'complete'}
local BATCH_KEEP_MS = 86400000   -- how long complete batches are remembered

local function has_options(features) return features % 2 == HAS_OPTIONS end

local function refuse(code, field)
  error({err = 'FAIRQ ' .. code .. ' ' .. field})
end

-- Checks a tenant's name where the call may create the tenant. Elsewhere a bad name finds nothing.
local function check_tenant(name)
  if #name > 128 or not name:find('^[%w._@+-]+$') then refuse('bad_request', 'tenant') end
end

-- Checks a new id: 1 to `most` bytes, and no control characters, since one parts the ids of a bundle.
local function check_id(id, most)
  if #id > most or not id:find('^%C+$') then refuse('bad_request', 'id') end
end

local function check_whole(given, field, minimum, maximum)
  local number = tonumber(given)
  if not number or number < minimum or number > maximum or number % 1 ~= 0 then refuse('bad_request', field) end
  return number
end

-- The ids in the arguments from `first` on: at most `most`, each once.
local function ids_in(args, first, most)
  local ids, seen = {}, {}
  for i = first, #args do
    if seen[args[i]] then refuse('bad_request', 'ids') end
    ids[#ids + 1], seen[args[i]] = args[i], true
  end
  if #ids == 0 or #ids > most then refuse('bad_request', 'ids') end
  return ids
end

-- A page of a hash or set from a caller's cursor on: the next cursor, "0" at the end, and what is on it.
local function scan(command, at, cursor, count)
  local page = cursor:find('^%d+$') and redis.pcall(command, at, cursor, 'COUNT', count)  -- Redis takes empty as 0
  if not page or page.err then refuse('bad_request', 'cursor') end
  return page[1], page[2]
end

-- Maps by name are stored (as MessagePack) without default values; unknown names are kept.
local function with_defaults(map, defaults)
  for name, default in pairs(defaults) do
    if map[name] == nil then map[name] = default end
  end
  return map
end

local function without_defaults(map, defaults)
  local kept = {}
  for name, value in pairs(map) do
    if value ~= defaults[name] then kept[name] = value end
  end
  return kept
end

-- The table that another one has under a name, made when it is first needed.
local function table_in(of, name)
  local found = of[name] or {}
  of[name] = found
  return found
end

local function text(number)
  return string.format('%.17g', number)
end

-- True if a text comes first by its bytes, as in sorted sets; Lua's own `<` follows the store's locale.
local function precedes(one, other)
  for i = 1, math.min(#one, #other) do
    if one:byte(i) ~= other:byte(i) then return one:byte(i) < other:byte(i) end
  end
  return #one < #other
end

-- A command of many arguments (or none), in parts: Lua cannot unpack more than some 8,000 values at once.
local function write(command, at, values)
  local count = #values
  if count > 0 and count <= 2000 then return redis.call(command, at, unpack(values)) end
  for first = 1, count, 2000 do
    redis.call(command, at, unpack(values, first, math.min(first + 1999, count)))
  end
end
