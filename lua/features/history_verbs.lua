-- needs: accounts, calls, history, seats
--
-- The verbs on the history of a queue: servers add their counts, and readers ask for slots.
--
-- Servers count events (enqueued, started, failed, waiting times) and add the counts every few seconds. The rest is
-- computed here: how much the counts of the queue, and of the tenants looked at, have grown since `history_last`. The
-- row of the others gets the service of the queue that is in no other row. A tenant that was not looked at for long may
-- have been part of that row meanwhile: its row gets at most the service of the queue since the last call, after the
-- tenants that grew by less.

local SMALLEST = 0.001         -- service below this is an error of rounding
local ARGS_PER_ROW = 5
local EARLIER_SLOTS = 3        -- slots that are searched for tenants with tasks that still run
local LAST_KEPT = 1000         -- tenants in `history_last`; then all are forgotten
local NEW_MS = 600000          -- for how long a queue that was never counted is taken for a new one
local PAGE_SLOTS = 240
local IS_SERVICE = {delivered = true, entitled = true}

-- The rows that a server has counted, by tenant.
local function rows_in(args)
  local rows = {}
  for i = 4, #args, ARGS_PER_ROW do
    local row = history.row_of(rows, args[i])
    row.enqueued, row.started, row.failed = tonumber(args[i + 1]), tonumber(args[i + 2]), tonumber(args[i + 3])
    row.waits = args[i + 4]
  end
  return rows
end

-- The accounts of the rows' tenants, and of those in the last slots: their tasks may still run.
local function accounts_of(call, rows)
  local ring, is_wanted, names = history.RINGS[1], {}, {}
  for name in pairs(rows) do is_wanted[name] = true end
  for back = 0, EARLIER_SLOTS do
    for name in pairs(history.slot_of(call, ring, history.number_of(call, ring) - back).rows) do
      is_wanted[name] = true
    end
  end
  is_wanted[''] = nil
  for name in pairs(is_wanted) do names[#names + 1] = name end
  local details = #names > 0 and redis.call('HMGET', call.prefix .. 'tenants', unpack(names)) or {}
  return accounts.of_details(call, names, details)
end

-- Service may be negative: when a lease is lost, the time since its last renewal is taken back. So the intervals of a
-- tenant add up to its account.
local function growth_of(last, new)
  local growth = {}
  for field, value in pairs(new) do
    local by = value - last[field]
    growth[field] = IS_SERVICE[field] and by or math.max(by, 0)
  end
  return growth
end

-- The growth of the tenants looked at, and (second) their present values, to be stored. A tenant that was not looked at
-- before counts from zero if it is new, else from now.
local function growths_of(call, rows, last)
  local found, tags, grown, current = accounts_of(call, rows), {}, {}, {}
  for i, account in ipairs(found) do tags[i] = account.tag end
  local packed = #tags > 0 and redis.call('HMGET', call.prefix .. 'history_last', unpack(tags)) or {}
  for i, account in ipairs(found) do
    local new = {delivered = accounts.delivered_to(call, account), entitled = seats.entitled_to(call, account),
      done = accounts.books_of(call, account).done}
    local is_new = struct.unpack('<I', account.tag) > last.numbers
    local growth = growth_of(packed[i] and LOOKED_AT.unpack(packed[i]) or is_new and LOOKED_AT.new{} or new, new)
    growth.name, grown[i] = account.name, growth
    current[#current + 1], current[#current + 2] = account.tag, LOOKED_AT.pack(new)
  end
  return grown, current
end

-- Adds service to a row, at most what is left of the queue's.
local function add_service(rows, name, growth, left)
  if growth.done == 0 and math.abs(growth.delivered) < SMALLEST and math.abs(growth.entitled) < SMALLEST then return end
  local row = history.row_of(rows, name)
  for _, field in ipairs({'done', 'delivered', 'entitled'}) do
    row[field] = math.min(growth[field], math.max(left[field], 0))
    left[field] = left[field] - row[field]
  end
end

-- add_history(keys, argv): add a server's counts since its last call, and the growth of the queue's own counts since
-- the last call of any server.
--   argv  3 lost (leases that ran out)  then per tenant (none twice; at most 31; empty: all others): tenant, enqueued,
--         started, failed (attempts), waits (pairs `<BI` of a bucket of waiting times and how many starts, rising)
--   out   how many tasks are leased
function writes.add_history(keys, args)
  local call = calls.open_made(keys, args)
  local queue, rows, at = call.queue, rows_in(args), call.prefix .. 'history_last'
  local new = {enqueued = queue.enqueued, done = queue.done, dead = queue.buried, expired = queue.expired,
    cancelled = queue.cancelled, delivered = queue.delivered, entitled = queue.entitled, numbers = queue.numbers}
  local packed = redis.call('HGET', at, 'queue')
  local known = packed and TOTALS.unpack(packed)
  local last = known or call.now - queue.origin < NEW_MS and TOTALS.new{} or new  -- a new queue counts from zero
  local counts, left = growth_of(last, new), growth_of(last, new)
  local grown, current = growths_of(call, rows, last)
  table.sort(grown, function(one, other)
    if one.delivered ~= other.delivered then return one.delivered < other.delivered end
    return precedes(one.name, other.name)
  end)
  for _, growth in ipairs(grown) do add_service(rows, growth.name, growth, left) end
  add_service(rows, '', left, left)
  counts.lost = tonumber(args[3])
  for _, ring in ipairs(history.RINGS) do history.add(call, ring, counts, rows) end
  if redis.call('HLEN', at) > LAST_KEPT then redis.call('DEL', at) end
  history.keep_last(call, new, current)
  return queue.leased
end

-- history(keys, argv): the slots of a ring that are not empty, the oldest first.
--   argv  3 step (s): 10, 60 or 900  4 number of the last slot wanted (-1: the newest)  5 count (1..240)
--   out   now_ms, share (0 worker time, 1 tasks), then slots: SLOT, each followed by its SLOT_ROWs
function reads.history(keys, args)
  local call, ring = calls.ask(keys, args), nil
  for _, each in ipairs(history.RINGS) do
    if args[3] == tostring(each.seconds) then ring = each end
  end
  if not ring then refuse('bad_request', 'step') end
  local last, count = check_whole(args[4], 'last', -1, HORIZON_MS), check_whole(args[5], 'count', 1, PAGE_SLOTS)
  if last < 0 then last = history.number_of(call, ring) end
  local out, fields = {call.now, call.queue.share}, {}
  for number = last - count + 1, last do fields[#fields + 1] = number % ring.slots end
  local found = redis.call('HMGET', history.ring_key(call, ring), unpack(fields))
  for i = 1, count do
    if found[i] and SLOT.unpack(found[i]).number == last - count + i then out[#out + 1] = found[i] end
  end
  return out
end
