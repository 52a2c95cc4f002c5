-- What happened in a queue over time: counts, waiting times and shares, for operators.
--
-- Each of three rings has a slot per step of time: a hash whose fields are the slots' numbers modulo the ring's length.
-- So a slot is overwritten when the ring has come round, nothing has to be cleaned, and an added interval costs the same
-- however much there is. A slot has a row for each of the tenants with the most traffic in it; the others share the row
-- without a name.
--
-- Servers count what they see (enqueued, started, failed, waiting times) and add that every few seconds, under a number:
-- a repeated call adds nothing. The rest is taken here, exactly once whoever calls: what the queue's totals and the
-- tenants' books have grown by since the last call. History is no reason to keep a queue (82_forget.lua), and changes
-- nothing else.

do

local STEPS = {{10, 360}, {60, 1440}, {900, 1344}}  -- seconds, and how many slots: an hour, a day, two weeks
local VERSION_OF_SLOTS = 1
local TENANTS_PER_SLOT = 20
local ROWS_PER_CALL = 51       -- of a server: 50 tenants, and the others
local ARGS_PER_ROW = 5
local EARLIER_SLOTS = 3        -- in which tenants are looked for whose tasks run on
local BOOKS_KEPT = 500         -- of a generation; there are two
local SERVERS_KEPT, SERVER_MS = 200, 3600000
local NEW_MS = 600000          -- for how long a queue that was never counted is taken for a new one
local LAST_BUCKET = 60
local MOST = 2 ^ 32 - 1
local PAGE_SLOTS = 240
local COUNTED, TOTALLED = {'enqueued', 'started', 'done', 'failed'},
  {'enqueued', 'done', 'dead', 'expired', 'cancelled'}
local BESIDE = {'history_state', 'history_books', 'history_books_before'}

local function new_row(name)
  return {name = name, enqueued = 0, started = 0, done = 0, failed = 0, delivered = 0, entitled = 0, waits = {}}
end

local function add_row(row, more)
  for _, field in ipairs(COUNTED) do row[field] = math.min(row[field] + more[field], MOST) end
  row.delivered, row.entitled = row.delivered + more.delivered, row.entitled + more.entitled
  for bucket, count in pairs(more.waits) do row.waits[bucket] = math.min((row.waits[bucket] or 0) + count, MOST) end
end

local function row_of(rows, name)
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

local function check_waits(packed)
  local previous = -1
  if #packed % 5 ~= 0 then refuse('bad_request', 'waits') end
  for at = 1, #packed, 5 do
    local bucket = packed:byte(at)
    if bucket <= previous or bucket > LAST_BUCKET then refuse('bad_request', 'waits') end
    previous = bucket
  end
  return unpack_waits(packed)
end

-- The rows that a server has counted, by tenant.
local function rows_in(args)
  local rows, count = {}, (#args - 5) / ARGS_PER_ROW
  if count % 1 ~= 0 or count > ROWS_PER_CALL then refuse('bad_request', 'tenants') end
  for i = 6, #args, ARGS_PER_ROW do
    local name = args[i]
    if name ~= '' then check_tenant(name) end
    if rows[name] then refuse('bad_request', 'tenant') end
    local row = row_of(rows, name)
    row.enqueued = check_whole(args[i + 1], 'enqueued', 0, MOST)
    row.started = check_whole(args[i + 2], 'started', 0, MOST)
    row.failed = check_whole(args[i + 3], 'failed', 0, MOST)
    row.waits = check_waits(args[i + 4])
  end
  return rows
end

local function ring_key(call, step)
  return key(call, 'history:' .. step[1])
end

local function number_of(call, step)
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

local function load_slot(call, step, number)
  return read_slot(redis.call('HGET', ring_key(call, step), number % step[2]), number)
end

local function save_slot(call, step, slot)
  local parts, at = {SLOT.pack(slot)}, ring_key(call, step)
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

-- Adds the rows of all but the tenants with the most traffic to that of the others.
local function fold(call, rows)
  local one, named = service_of_one(call.queue), {}
  for name, row in pairs(rows) do
    row.traffic = row.started + row.delivered / one
    if name ~= '' then named[#named + 1] = row end
  end
  if #named <= TENANTS_PER_SLOT then return end
  table.sort(named, function(a, b)
    if a.traffic ~= b.traffic then return a.traffic > b.traffic end
    return precedes(a.name, b.name)
  end)
  for i = TENANTS_PER_SLOT + 1, #named do
    add_row(row_of(rows, ''), named[i])
    rows[named[i].name] = nil
  end
end

-- What the queue's totals were when they were last looked at: nothing, if the queue is new; as now, if that is not known.
local function last_totals(call)
  local q, packed = call.queue, redis.call('HGET', key(call, 'history_state'), 'totals')
  if packed then return TOTALS.unpack(packed) end
  local is_new = call.now - q.origin < NEW_MS
  local last = {numbers = is_new and 0 or q.numbers}
  for _, field in ipairs(TOTALLED) do last[field] = is_new and 0 or q[field == 'dead' and 'buried' or field] end
  return last
end

local function totals_of(q)
  return {numbers = q.numbers, enqueued = q.enqueued, done = q.done, dead = q.buried, expired = q.expired,
    cancelled = q.cancelled}
end

-- The tenants of the rows, and those of the last slots, whose tasks may run on: names, tags.
local function tenants_of(call, rows)
  local step, names, tags, is_known = STEPS[1], {}, {}, {['']  = true}
  local newest, found = number_of(call, STEPS[1]), {rows}
  for back = 0, EARLIER_SLOTS do found[#found + 1] = load_slot(call, step, newest - back).rows end
  for _, some in ipairs(found) do
    for name in pairs(some) do
      if not is_known[name] then names[#names + 1], is_known[name] = name, true end
    end
  end
  if #names == 0 then return names, tags, {} end
  local details = redis.call('HMGET', key(call, 'tenants'), unpack(names))
  for i = 1, #names do tags[i] = details[i] and details[i]:sub(1, 4) end
  return names, tags, details
end

local function last_books(call, tag, numbers)
  local packed = redis.call('HGET', key(call, 'history_books'), tag)
    or redis.call('HGET', key(call, 'history_books_before'), tag)
  if packed then return OLD_BOOKS.unpack(packed) end
  if struct.unpack('<I', tag) > numbers then return {epoch = -1, delivered = 0, entitled = 0, done = 0} end
end

-- Adds to the rows what tenants got and were entitled to since their books were last looked at. Nothing is added for a
-- tenant that has been idle for so long that its old books are forgotten: from the next call on it counts.
local function add_service(call, rows, numbers)
  local names, tags, details = tenants_of(call, rows)
  local at, present = key(call, 'history_books'), {}
  for i = 1, #names do present[#present + 1] = tags[i] or nil end
  accounts.read(call, present)
  for i, name in ipairs(names) do
    if tags[i] then
      local t = accounts.named(call, name, details[i])
      local books, last = accounts.books_of(call, t), last_books(call, tags[i], numbers)
      local new = {epoch = books.epoch, delivered = accounts.delivered_to(call, t),
        entitled = seats.entitled_to(call, t), done = books.done}
      if last and (last.delivered ~= new.delivered or last.entitled ~= new.entitled or last.done ~= new.done) then
        local is_same, row = last.epoch == new.epoch, row_of(rows, name)
        row.done = math.max(0, new.done - last.done)
        row.delivered = new.delivered - (is_same and last.delivered or 0)
        row.entitled = new.entitled - (is_same and last.entitled or 0)
      end
      redis.call('HSET', at, tags[i], OLD_BOOKS.pack(new))
    end
  end
  if redis.call('HLEN', at) > BOOKS_KEPT then redis.call('RENAME', at, key(call, 'history_books_before')) end
end

-- Remembers the number of the server's call; forgets servers that have not called for long, if there are many.
local function note_server(call, server, number)
  local at, old = key(call, 'history_state'), {}
  redis.call('HSET', at, 'server ' .. server, number .. ' ' .. text(call.now))
  if redis.call('HLEN', at) <= SERVERS_KEPT then return end
  local pairs_ = redis.call('HGETALL', at)
  for i = 1, #pairs_, 2 do
    local when = pairs_[i]:find('^server ') and tonumber(pairs_[i + 1]:match(' (.+)$'))
    if when and when < call.now - SERVER_MS then old[#old + 1] = pairs_[i] end
  end
  write('HDEL', at, old)
end

-- add_history(keys, argv): add what a server has counted since its last call, and what the queue and its tenants have
-- done since anybody's.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 server  4 number of its call (1 ..): the same one again adds nothing  5 lost (leases
--         that ran out)  then per tenant (none twice; empty: all others; at most 51): tenant, enqueued, started, failed
--         (attempts), waits (pairs `<BI` of a bucket of waiting times and how many starts, rising)
--   out   "ok" | "again"; how many tasks are leased
--   flags none: refused when the store is full
function verbs.add_history(keys, args)
  local call = calls.open_made(keys, args)
  check_id(args[3], ID_BYTES)
  local number, lost = check_whole(args[4], 'number', 1, HORIZON_MS), check_whole(args[5], 'lost', 0, MOST)
  local rows, state = rows_in(args), key(call, 'history_state')
  local known = redis.call('HGET', state, 'server ' .. args[3])
  if known and tonumber(known:match('^%S+')) == number then return {'again', call.queue.leased} end
  local last, new = last_totals(call), totals_of(call.queue)
  if rows[''] then
    local estimate = rows[''].started * service_of_one(call.queue)
    rows[''].delivered, rows[''].entitled = estimate, estimate
  end
  add_service(call, rows, last.numbers)
  for _, step in ipairs(STEPS) do
    local slot = load_slot(call, step, number_of(call, step))
    slot.lost = math.min(slot.lost + lost, MOST)
    for _, field in ipairs(TOTALLED) do
      slot[field] = math.min(slot[field] + math.max(0, new[field] - last[field]), MOST)
    end
    for name, row in pairs(rows) do add_row(row_of(slot.rows, name), row) end
    fold(call, slot.rows)
    save_slot(call, step, slot)
  end
  redis.call('HSET', state, 'totals', TOTALS.pack(new))
  note_server(call, args[3], number)
  for _, name in ipairs(BESIDE) do redis.call('PEXPIRE', key(call, name), STEPS[3][1] * STEPS[3][2] * 1000) end
  return {'ok', call.queue.leased}
end

-- history(keys, argv): the slots of a ring that have anything, the oldest first.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 step (s): 10, 60 or 900  4 number of the last slot wanted (-1: of the newest)  5 count
--         (1..240)
--   out   now_ms, share (0 worker time, 1 tasks), then slots: SLOT, each followed by its SLOT_ROWs
function verbs.history(keys, args)
  local call, step = calls.ask(keys, args), nil
  for _, each in ipairs(STEPS) do
    if args[3] == tostring(each[1]) then step = each end
  end
  if not step then refuse('bad_request', 'step') end
  local last, count = check_whole(args[4], 'last', -1, HORIZON_MS), check_whole(args[5], 'count', 1, PAGE_SLOTS)
  if last < 0 then last = number_of(call, step) end
  local out, fields = {call.now, call.queue.share}, {}
  for number = last - count + 1, last do fields[#fields + 1] = number % step[2] end
  local found = redis.call('HMGET', ring_key(call, step), unpack(fields))
  for i = 1, count do
    if found[i] and SLOT.unpack(found[i]).number == last - count + i then out[#out + 1] = found[i] end
  end
  return out
end

end
