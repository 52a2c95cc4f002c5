-- What servers add to the history of a queue, and what is read of it.
do

local ROWS_PER_CALL = 31       -- of a server: 30 tenants, and the others
local ARGS_PER_ROW = 5
local EARLIER_SLOTS = 3        -- in which tenants are looked for whose tasks run on
local BOOKS_KEPT = 500         -- of a generation; there are two
local SERVERS_KEPT, SERVER_MS = 200, 3600000
local NEW_MS = 600000          -- for how long a queue that was never counted is taken for a new one
local PAGE_SLOTS = 240
local KEEP_MS = 14 * 86400000
local TOTALLED = {'enqueued', 'done', 'dead', 'expired', 'cancelled'}
local BESIDE = {'history_state', 'history_books', 'history_books_before'}

-- The rows that a server has counted, by tenant.
local function rows_in(args)
  local rows, count = {}, (#args - 5) / ARGS_PER_ROW
  if count % 1 ~= 0 or count > ROWS_PER_CALL then refuse('bad_request', 'tenants') end
  for i = 6, #args, ARGS_PER_ROW do
    local name = args[i]
    if name ~= '' then check_tenant(name) end
    if rows[name] then refuse('bad_request', 'tenant') end
    local row = history.row_of(rows, name)
    row.enqueued = check_whole(args[i + 1], 'enqueued', 0, history.MOST)
    row.started = check_whole(args[i + 2], 'started', 0, history.MOST)
    row.failed = check_whole(args[i + 3], 'failed', 0, history.MOST)
    row.waits = history.check_waits(args[i + 4])
  end
  return rows
end

-- The queue's totals when they were last looked at: none, if the queue is new; those of now, if they are unknown.
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

-- The tenants of the rows, and those of the last slots, whose tasks may run on: their names, tags and details.
local function tenants_of(call, rows)
  local step, wanted, is_known, found = history.STEPS[1], {}, {['']  = true}, {rows}
  for back = 0, EARLIER_SLOTS do
    found[#found + 1] = history.names_in(call, step, history.number_of(call, step) - back)
  end
  for _, some in ipairs(found) do
    for name in pairs(some) do
      if not is_known[name] then wanted[#wanted + 1], is_known[name] = name, true end
    end
  end
  local names, tags, details = {}, {}, {}
  local packed = #wanted > 0 and redis.call('HMGET', key(call, 'tenants'), unpack(wanted)) or {}
  for i, name in ipairs(wanted) do
    if packed[i] then
      names[#names + 1], tags[#tags + 1], details[#details + 1] = name, packed[i]:sub(1, 4), packed[i]
    end
  end
  return names, tags, details
end

-- Tenants' books as they were when they were last looked at: those of a new tenant are empty; false if not known.
local function last_books(call, tags, numbers)
  local found = redis.call('HMGET', key(call, 'history_books'), unpack(tags))
  local older = redis.call('HMGET', key(call, 'history_books_before'), unpack(tags))
  for i, tag in ipairs(tags) do
    local packed, is_new = found[i] or older[i], struct.unpack('<I', tag) > numbers
    found[i] = packed and OLD_BOOKS.unpack(packed) or is_new and {epoch = -1, delivered = 0, entitled = 0, done = 0}
  end
  return found
end

-- Adds to a tenant's row what its books have grown by.
local function add_growth(row, last, new)
  if last.epoch ~= new.epoch then last.delivered, last.entitled = 0, 0 end  -- the unit was changed: all began anew
  row.done = math.max(0, new.done - last.done)
  row.delivered, row.entitled = new.delivered - last.delivered, new.entitled - last.entitled
end

local function is_other(last, new)
  return last.done ~= new.done or last.delivered ~= new.delivered or last.entitled ~= new.entitled
end

-- Adds to the rows what tenants got and were entitled to since their books were last looked at: of one that is among
-- the others it is added when it is named. An estimate until then would count it twice. Nothing is added for a
-- tenant that has been idle for so long that its old books are forgotten: from the next call on it counts.
local function add_service(call, rows, numbers)
  local names, tags, details = tenants_of(call, rows)
  if #names == 0 then return end
  accounts.read(call, tags)
  local at, books, before = key(call, 'history_books'), {}, last_books(call, tags, numbers)
  for i, name in ipairs(names) do
    local t = accounts.named(call, name, details[i])
    local kept = accounts.books_of(call, t)
    local new = {epoch = kept.epoch, delivered = accounts.delivered_to(call, t),
      entitled = seats.entitled_to(call, t), done = kept.done}
    if before[i] and is_other(before[i], new) then add_growth(history.row_of(rows, name), before[i], new) end
    books[2 * i - 1], books[2 * i] = tags[i], OLD_BOOKS.pack(new)
  end
  write('HSET', at, books)
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
-- done since the last call of any.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 server  4 number of its call (1 ..): the same one again adds nothing  5 lost
--         (leases that ran out)  then per tenant (none twice; at most 31; empty: all others): tenant, enqueued,
--         started, failed (attempts), waits (pairs `<BI` of a bucket of waiting times and how many starts, rising)
--   out   "ok" | "again"; how many tasks are leased
--   flags none: refused when the store is full
function verbs.add_history(keys, args)
  local call = calls.open_made(keys, args)
  check_id(args[3], ID_BYTES)
  local number, lost = check_whole(args[4], 'number', 1, HORIZON_MS), check_whole(args[5], 'lost', 0, history.MOST)
  local rows, state = rows_in(args), key(call, 'history_state')
  local known = redis.call('HGET', state, 'server ' .. args[3])
  if known and tonumber(known:match('^%S+')) == number then return {'again', call.queue.leased} end
  local last, new, new_in = last_totals(call), totals_of(call.queue), {lost = lost}
  add_service(call, rows, last.numbers)
  for _, field in ipairs(TOTALLED) do new_in[field] = math.max(0, new[field] - last[field]) end
  for _, step in ipairs(history.STEPS) do history.add(call, step, new_in, rows) end
  redis.call('HSET', state, 'totals', TOTALS.pack(new))
  note_server(call, args[3], number)
  for _, name in ipairs(BESIDE) do redis.call('PEXPIRE', key(call, name), KEEP_MS) end
  return {'ok', call.queue.leased}
end

-- history(keys, argv): the slots of a ring that have anything, the oldest first.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 step (s): 10, 60 or 900  4 number of the last slot wanted (-1: the newest)
--         5 count (1..240)
--   out   now_ms, share (0 worker time, 1 tasks), then slots: SLOT, each followed by its SLOT_ROWs
function verbs.history(keys, args)
  local call, step = calls.ask(keys, args), nil
  for _, each in ipairs(history.STEPS) do
    if args[3] == tostring(each[1]) then step = each end
  end
  if not step then refuse('bad_request', 'step') end
  local last, count = check_whole(args[4], 'last', -1, HORIZON_MS), check_whole(args[5], 'count', 1, PAGE_SLOTS)
  if last < 0 then last = history.number_of(call, step) end
  local out, fields = {call.now, call.queue.share}, {}
  for number = last - count + 1, last do fields[#fields + 1] = number % step[2] end
  local found = redis.call('HMGET', history.ring_key(call, step), unpack(fields))
  for i = 1, count do
    if found[i] and SLOT.unpack(found[i]).number == last - count + i then out[#out + 1] = found[i] end
  end
  return out
end

end
