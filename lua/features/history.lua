-- The history of a queue: counts, waiting times and shares over time, for operators.
--
-- There are three rings with a slot per step of time. A ring is a hash, its fields being the slots' numbers modulo the
-- ring's length. So a slot is overwritten when the ring has come round, and nothing has to be cleaned. A slot has a row
-- for each of the tenants that got the most in it; the others share the row without a name. Slots are only added to: a
-- call that is lost, or made twice, leaves a few seconds out, or counts them twice.

local RINGS = {  -- an hour, a day, two weeks
  {seconds = 10, slots = 360}, {seconds = 60, slots = 1440}, {seconds = 900, slots = 1344},
}
local TENANTS_PER_SLOT = 20
local LAST_BUCKET = 60
local MOST = 2 ^ 32 - 1
local KEEP_MS = 14 * 86400000
history.RINGS = RINGS
local TOTALLED = {'enqueued', 'done', 'dead', 'expired', 'cancelled', 'lost'}  -- of the queue
local COUNTED = {'enqueued', 'started', 'done', 'failed'}                      -- of each tenant

-- Adds two lists of waiting times, pairs of a bucket and a count in the buckets' order.
local function add_waits(one, other)
  local waits, parts = {}, {}
  for _, packed in ipairs({one, other}) do
    for at = 1, #packed, 5 do
      local bucket, count = struct.unpack('<BI', packed, at)
      waits[bucket] = math.min((waits[bucket] or 0) + count, MOST)
    end
  end
  for bucket = 0, LAST_BUCKET do
    if waits[bucket] then parts[#parts + 1] = struct.pack('<BI', bucket, waits[bucket]) end
  end
  return table.concat(parts)
end

-- The row of a tenant; a new one, if there is none.
function history.row_of(rows, name)
  rows[name] = rows[name] or SLOT_ROW.new{name = name}
  return rows[name]
end

local function add_row(rows, name, more)
  local row = history.row_of(rows, name)
  for _, field in ipairs(COUNTED) do row[field] = math.min(row[field] + more[field], MOST) end
  row.delivered, row.entitled = row.delivered + more.delivered, row.entitled + more.entitled
  if more.waits ~= '' then row.waits = add_waits(row.waits, more.waits) end
end

function history.ring_key(call, ring)
  return call.prefix .. 'history:' .. ring.seconds
end

function history.number_of(call, ring)
  return math.floor(call.now / 1000 / ring.seconds)
end

-- A slot as stored; a new one if its place in the ring has one of another time.
function history.slot_of(call, ring, number)
  local packed, slot, at = redis.call('HGET', history.ring_key(call, ring), number % ring.slots), nil, nil
  if packed then slot, at = SLOT.unpack(packed) end
  if not slot or slot.number ~= number then return SLOT.new{number = number, rows = {}} end
  slot.rows = {}
  while at <= #packed do
    local row
    row, at = SLOT_ROW.unpack(packed, at)
    slot.rows[row.name] = row
  end
  return slot
end

-- Adds to `history_last`, or begins it. It expires, so what grew in more than two weeks is in no slot.
function history.keep_last(call, totals, looked_at)
  local at = call.prefix .. 'history_last'
  redis.call('HSET', at, 'queue', TOTALS.pack(totals), unpack(looked_at))
  redis.call('PEXPIRE', at, KEEP_MS)
end

-- The unit of service changes: accounts start from zero, and so does `history_last`.
function history.begin_anew(call)
  local at = call.prefix .. 'history_last'
  local packed = redis.call('HGET', at, 'queue')
  if not packed then return end
  local last = TOTALS.unpack(packed)
  last.delivered, last.entitled = 0, 0
  redis.call('DEL', at)
  history.keep_last(call, last, {})
end

-- Keeps the rows of the tenants that got the most, and adds the rest to the row of the others.
local function fold(rows)
  local named = {}
  for name, row in pairs(rows) do
    if name ~= '' then named[#named + 1] = row end
  end
  if #named <= TENANTS_PER_SLOT then return end
  table.sort(named, function(one, other)
    if one.delivered ~= other.delivered then return one.delivered > other.delivered end
    if one.started ~= other.started then return one.started > other.started end
    return precedes(one.name, other.name)
  end)
  for i = TENANTS_PER_SLOT + 1, #named do
    add_row(rows, '', named[i])
    rows[named[i].name] = nil
  end
end

-- Adds counts of the queue, and rows of tenants, to the slot of a ring that is filling now.
function history.add(call, ring, counts, rows)
  local at, slot = history.ring_key(call, ring), history.slot_of(call, ring, history.number_of(call, ring))
  for _, field in ipairs(TOTALLED) do slot[field] = math.min(slot[field] + counts[field], MOST) end
  for name, row in pairs(rows) do add_row(slot.rows, name, row) end
  fold(slot.rows)
  local parts = {SLOT.pack(slot)}
  for _, row in pairs(slot.rows) do parts[#parts + 1] = SLOT_ROW.pack(row) end
  redis.call('HSET', at, slot.number % ring.slots, table.concat(parts))
  redis.call('PEXPIRE', at, ring.seconds * ring.slots * 1000)
end
