-- What servers add to the history of a queue, and what is read of it.
do

local SMALLEST = 0.001         -- service below this is an error of rounding
local ROWS_PER_CALL = 31       -- of a server: 30 tenants, and the others
local ARGS_PER_ROW = 5
local EARLIER_SLOTS = 3        -- in which tenants are looked for whose tasks run on
local BOOKS_KEPT = 500         -- of a generation; there are two
local SERVERS_KEPT, SERVER_MS = 200, 3600000
local NEW_MS = 600000          -- for how long a queue that was never counted is taken for a new one
local PAGE_SLOTS = 240
local KEEP_MS = 14 * 86400000
local TOTALLED = {'enqueued', 'done', 'dead', 'expired', 'cancelled'}
local BOOKED = {'delivered', 'entitled', 'done'}
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

local function nothing_of(call_number)
  return {call = call_number, epoch = -1, delivered = 0, entitled = 0, done = 0}
end

-- The books of the whole queue, as those of a tenant.
local function books_of_all(q)
  return {call = 0, epoch = q.epoch, delivered = q.delivered, entitled = q.entitled, done = q.done}
end

local function totals_of(q, call_number, blurred)
  return {call = call_number, blurred = blurred, numbers = q.numbers, enqueued = q.enqueued, done = q.done,
    dead = q.buried, expired = q.expired, cancelled = q.cancelled}
end

-- The queue's totals when they were last looked at, and what the rows have told of all its books: nothing, if the
-- queue is new; what they are now, if that is unknown.
local function last_time(call)
  local q, packed = call.queue, redis.call('HMGET', key(call, 'history_state'), 'totals', 'told')
  if packed[1] and packed[2] then return TOTALS.unpack(packed[1]), (OLD_BOOKS.unpack(packed[2])) end
  if call.now - q.origin >= NEW_MS then return totals_of(q, 0, 0), books_of_all(q) end
  return totals_of(calls.new_queue(), 0, 0), nothing_of(0)
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
    found[i] = packed and OLD_BOOKS.unpack(packed) or is_new and nothing_of(HORIZON_MS)
  end
  return found
end

-- What books have grown by; not below nothing, and what is not worth a row is none.
local function growth_of(last, new)
  if last.epoch ~= new.epoch then last.delivered, last.entitled = 0, 0 end  -- the unit was changed: all began anew
  local growth = {}
  for _, field in ipairs(BOOKED) do
    local more = new[field] - last[field]
    growth[field] = more >= SMALLEST and more or 0
  end
  return growth
end

-- Adds service to the tenant's row, and to what the rows have told.
local function tell(rows, name, growth, told)
  if growth.done == 0 and growth.delivered == 0 and growth.entitled == 0 then return end
  local row = history.row_of(rows, name)
  for _, field in ipairs(BOOKED) do row[field], told[field] = growth[field], told[field] + growth[field] end
end

-- Looks at the books of tenants, and adds to the rows what they have got since these were last looked at, if that was
-- since the last blurred call.
local function add_named(call, rows, last, told)
  local names, tags, details = tenants_of(call, rows)
  if #names == 0 then return end
  accounts.read(call, tags)
  local at, books, before = key(call, 'history_books'), {}, last_books(call, tags, last.numbers)
  for i, name in ipairs(names) do
    local t = accounts.named(call, name, details[i])
    local kept, old = accounts.books_of(call, t), before[i]
    local new = {call = last.call + 1, epoch = kept.epoch, delivered = accounts.delivered_to(call, t),
      entitled = seats.entitled_to(call, t), done = kept.done}
    if old and old.call >= last.blurred then tell(rows, name, growth_of(old, new), told) end
    books[2 * i - 1], books[2 * i] = tags[i], OLD_BOOKS.pack(new)
  end
  write('HSET', at, books)
  if redis.call('HLEN', at) > BOOKS_KEPT then redis.call('RENAME', at, key(call, 'history_books_before')) end
end

-- Adds to the rows what the queue has given since the last call: to named tenants, and (the rest) to the others.
local function add_service(call, rows, last, told)
  local all = books_of_all(call.queue)
  if told.epoch ~= all.epoch then told.epoch, told.delivered, told.entitled = all.epoch, 0, 0 end
  add_named(call, rows, last, told)
  tell(rows, '', growth_of(told, all), told)
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
  local last, told = last_time(call)
  local new, new_in = totals_of(call.queue, last.call + 1, last.blurred), {lost = lost}
  add_service(call, rows, last, told)
  local is_blurred = rows[''] ~= nil
  for _, field in ipairs(TOTALLED) do new_in[field] = math.max(0, new[field] - last[field]) end
  for i, step in ipairs(history.STEPS) do
    local is_folded = history.add(call, step, new_in, rows)
    is_blurred = is_blurred or i == 1 and is_folded
  end
  if is_blurred then new.blurred = new.call end
  redis.call('HSET', state, 'totals', TOTALS.pack(new), 'told', OLD_BOOKS.pack(told))
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
