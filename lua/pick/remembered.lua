-- needs: accounts
--
-- Remembered ids: the bytes that a tenant's ended tasks count while they have marks (tasks/records.lua).
--
-- An id counts less than its task did, so there is room for it. Marks are deleted by the minute, for all tenants
-- together, without reading their tenants. So the books only have the sums of this period and of the one before:
-- periods of a minute, and of LONG_MINUTES for ids that are remembered for an hour. A sum counts until the next period
-- is over: as long as its marks exist, and at most twice as long. If the clock goes back by more than a minute, it no
-- longer counts.
--
-- These fields of BOOKS stay packed, in its `more`, because few calls use them.

local MINUTE_MS, LONG_MINUTES = 60000, 62
local ID_COST, NAMED_IN = 55, 3  -- the store takes at most: an id that is remembered, copies of it
local FORMAT, SIZE = '<Idddd', 36    -- of these fields: minute, remembered, and so on
local FIRST, THIRD_AT = '<Id', 13    -- of the two that change most
local NONE = ('\0'):rep(SIZE)

-- The minute that it is. Marks are named in its list.
function remembered.minute(call) return math.floor(call.now / MINUTE_MS) end

-- True if an id is remembered for an hour: SDKs give such ids to what a handler enqueues.
function remembered.is_long(id)
  return id:find('/from-', 1, true) ~= nil
end

-- The bytes that an id counts while it is remembered (lua/KEYS.md says how that was measured).
function remembered.bytes_of(id)
  return ID_COST + NAMED_IN * #id
end

-- The sums that still count, as in the fields: `short`, of the minute before, and the same for long ones.
local function read(call, more)
  local at, short, before, long, long_before = struct.unpack(FORMAT, more)
  local age = call.now - at * MINUTE_MS
  if age >= 0 and age < MINUTE_MS then return short, before, long, long_before end
  local minute = remembered.minute(call)
  local periods = math.floor(minute / LONG_MINUTES) - math.floor(at / LONG_MINUTES)
  if periods ~= 0 then long, long_before = 0, periods == 1 and long or 0 end
  return 0, minute == at + 1 and short or 0, long, long_before
end

-- The bytes that the remembered ids count.
function remembered.bytes(call, more)
  if more == '' then return 0 end
  local short, before, long, long_before = read(call, more)
  return short + before + long + long_before
end

-- Counts an id: one that is remembered for an hour if `is_long`.
local function add(call, more, id, is_long)
  if more == '' then more = NONE end
  local bytes, short, before, long, long_before = remembered.bytes_of(id), read(call, more)
  if is_long then long = long + bytes else short = short + bytes end
  return struct.pack(FORMAT, remembered.minute(call), short, before, long, long_before) .. more:sub(SIZE + 1)
end

-- Counts the id of a task that ends.
function remembered.add(call, more, id)
  if more == '' or id:find('/from-', 1, true) then return add(call, more, id, remembered.is_long(id)) end
  local at, short = struct.unpack(FIRST, more)
  local age = call.now - at * MINUTE_MS
  if age < 0 or age >= MINUTE_MS then return add(call, more, id, false) end
  return struct.pack(FIRST, at, short + ID_COST + NAMED_IN * #id) .. more:sub(THIRD_AT)
end

-- Counts the id of a tenant's task that ends; or (`is_long`) one that is remembered for an hour more.
function remembered.note(call, account, id, is_long)
  local books = accounts.books_of(call, account)
  books.more = is_long and add(call, books.more, id, true) or remembered.add(call, books.more, id)
end
