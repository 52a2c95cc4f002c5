-- What happened in a queue over time: counts, waiting times and shares, for operators.
--
-- Each of three rings has a slot per step of time: a hash whose fields are the slots' numbers modulo the ring's length.
-- So a slot is overwritten when the ring has come round, nothing has to be cleaned, and an added interval costs as much
-- as the first one. A slot has a row for each of the tenants with the most traffic in it; the others share the row
-- without a name.
--
-- Servers count what they see (enqueued, started, failed, waiting times), and add that every few seconds. A call has a
-- number: repeated, it adds nothing. The rest is taken here, exactly once by any call: what the queue's totals and the
-- books of tenants have grown by since the last call. The row of the others has all that the queue gave and no other
-- row tells, so that rows add up. A call is *blurred* if it leaves tenants without a row of their own: books that were
-- not looked at since may have grown at any time, and what they grew by is in the others' row already. History is no
-- reason to keep a queue (82_forget.lua), and changes nothing else.

local history = {}  -- what other sections call
do

local STEPS = {{10, 360}, {60, 1440}, {900, 1344}}  -- seconds, and how many slots: an hour, a day, two weeks
local VERSION_OF_SLOTS = 1
local TENANTS_PER_SLOT = 20
local LAST_BUCKET = 60
local MOST = 2 ^ 32 - 1
history.STEPS, history.MOST = STEPS, MOST
local TOTALLED = {'enqueued', 'done', 'dead', 'expired', 'cancelled', 'lost'}  -- of the queue
local COUNTED = {'enqueued', 'started', 'done', 'failed'}                      -- of each tenant

local function new_row(name)
  return {name = name, enqueued = 0, started = 0, done = 0, failed = 0, delivered = 0, entitled = 0, waits = {}}
end

local function add_row(row, more)
  for _, field in ipairs(COUNTED) do row[field] = math.min(row[field] + more[field], MOST) end
  row.delivered, row.entitled = row.delivered + more.delivered, row.entitled + more.entitled
  for bucket, count in pairs(more.waits) do row.waits[bucket] = math.min((row.waits[bucket] or 0) + count, MOST) end
end

function history.row_of(rows, name)
  local row = rows[name] or new_row(name)
  rows[name] = row
  return row
end

-- Waiting times: pairs of a bucket and a count, in the buckets' order.
local function unpack_waits(packed)
  local waits = {}
  for at = 1, #packed, 5 do
    local bucket, count = struct.unpack('<BI', packed, at)
    waits[bucket] = count
  end
  return waits
end

local function pack_waits(waits)
  local parts = {}
  for bucket = 0, LAST_BUCKET do
    if waits[bucket] then parts[#parts + 1] = struct.pack('<BI', bucket, waits[bucket]) end
  end
  return table.concat(parts)
end

function history.check_waits(packed)
  local previous = -1
  if #packed % 5 ~= 0 then refuse('bad_request', 'waits') end
  for at = 1, #packed, 5 do
    local bucket = packed:byte(at)
    if bucket <= previous or bucket > LAST_BUCKET then refuse('bad_request', 'waits') end
    previous = bucket
  end
  return unpack_waits(packed)
end

function history.ring_key(call, step)
  return key(call, 'history:' .. step[1])
end

function history.number_of(call, step)
  return math.floor(call.now / 1000 / step[1])
end

-- A slot as it is kept; a new one, if the ring has that of another time in its place.
local function read_slot(packed, number)
  local slot, at
  if packed then slot, at = SLOT.unpack(packed) end
  if not slot or slot.version ~= VERSION_OF_SLOTS or slot.number ~= number then
    return {version = VERSION_OF_SLOTS, number = number, lost = 0, enqueued = 0, done = 0, dead = 0, expired = 0,
      cancelled = 0, rows = {}}
  end
  slot.rows = {}
  while at <= #packed do
    local row
    row, at = SLOT_ROW.unpack(packed, at)
    row.waits = unpack_waits(row.waits)
    slot.rows[row.name] = row
  end
  return slot
end

-- The tenants with a row in a slot; none if the ring has that of another time in its place.
function history.names_in(call, step, number)
  local packed, names = redis.call('HGET', history.ring_key(call, step), number % step[2]), {}
  if not packed then return names end
  local slot, at = SLOT.unpack(packed)
  if slot.version ~= VERSION_OF_SLOTS or slot.number ~= number then return names end
  while at <= #packed do
    local row
    row, at = SLOT_ROW.unpack(packed, at)
    names[row.name] = true
  end
  return names
end

local function load_slot(call, step, number)
  return read_slot(redis.call('HGET', history.ring_key(call, step), number % step[2]), number)
end

local function save_slot(call, step, slot)
  local parts, at = {SLOT.pack(slot)}, history.ring_key(call, step)
  for _, row in pairs(slot.rows) do
    local waits = row.waits
    row.waits = pack_waits(waits)
    parts[#parts + 1] = SLOT_ROW.pack(row)
    row.waits = waits
  end
  redis.call('HSET', at, slot.number % step[2], table.concat(parts))
  redis.call('PEXPIRE', at, step[1] * step[2] * 1000)
end

-- What a task of the queue counts, on average, in the unit of its shares.
local function service_of_one(q)
  return q.share == SHARE_COUNT and 1 or math.max(q.estimate, 1)
end

-- Adds the rows of all but the tenants with the most traffic to that of the others; returns whether there were such.
local function fold(call, rows)
  local one, named = service_of_one(call.queue), {}
  for name, row in pairs(rows) do
    row.traffic = math.max(row.started, row.delivered / one)
    if name ~= '' then named[#named + 1] = row end
  end
  if #named <= TENANTS_PER_SLOT then return false end
  table.sort(named, function(a, b)
    if a.traffic ~= b.traffic then return a.traffic > b.traffic end
    return precedes(a.name, b.name)
  end)
  for i = TENANTS_PER_SLOT + 1, #named do
    add_row(history.row_of(rows, ''), named[i])
    rows[named[i].name] = nil
  end
  return true
end

-- Adds what happened to the slot of a ring that is filling now: counts of the queue, and rows of tenants. Returns
-- whether some tenants have no row of their own any more.
function history.add(call, step, counts, rows)
  local slot = load_slot(call, step, history.number_of(call, step))
  for _, field in ipairs(TOTALLED) do slot[field] = math.min(slot[field] + counts[field], MOST) end
  for name, row in pairs(rows) do add_row(history.row_of(slot.rows, name), row) end
  local is_folded = fold(call, slot.rows)
  save_slot(call, step, slot)
  return is_folded
end

end
