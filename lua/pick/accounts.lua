-- The tenants of a call: read once, changed in place, written back when it closes (pick/close.lua).
--
-- A tenant has a number; its four bytes are the tenant's *tag*, the key in all structures of the fair pick. The hash
-- `accounts` has the fields that every dispatch reads and changes. `tenants` maps the name to the tag and to the
-- details that few tenants have (is_odd) or few calls use. An account is read for each tenant that a draw looks at, so
-- it has at most 16 fields: as many as a small table of Lua holds. Fields that the pick does not read are in the
-- *books*, which stay packed until a call opens them.
--
-- The account is the tenant's virtual time, service / weight, in a form that needs no change while time passes:
--
--   base + (leased * now - starts) / weight      `starts` is the sum of the times at which its running leases began
--
-- With `share = time` service is worker time, and a running lease counts while it runs; its end moves its time from the
-- second term to the first. With `share = count` service is `base`, one task for each dispatch. Times are relative to
-- `queue.origin`, so that sums of thousands of them stay exact.

local NO_LOAN, LOAN, GIFT = 0, 1, 2  -- of account.loan: what the tenant's one lease is, if it is one (pick/reserve.lua)
accounts.NO_LOAN, accounts.LOAN, accounts.GIFT = NO_LOAN, LOAN, GIFT
local HEAD = ACCOUNT.format:match('^[^c]*')    -- up to the length of the name
local LATER = DETAILS.format:match('^<c4..')   -- of details: tag, pending, delayed

local ITEM_BYTES, NAMED_IN = 400, 4  -- the store takes at most: a thing, copies of its name
accounts.DEFAULT_WEIGHT = 1000  -- weights are kept in thousandths, as integers, so that sums cannot drift

-- The details of a tenant if they are open or matter to the pick; else false: the account is enough.
function accounts.odd_details(call, account)
  return account.is_odd == 1 and (account.details or accounts.details_of(call, account))
end

-- True if ready tasks of the tenant are in groups (tasks/group_order.lua).
function accounts.has_groups(call, account)
  local details = accounts.odd_details(call, account)
  return details and details.grouped > 0
end

function accounts.vtime_of(call, account)
  if call.queue.share == SHARE_COUNT or account.loan == GIFT then return account.base end
  return account.base + (account.leased * call.at - account.starts) / account.weight
end

-- How many leases of the tenant move the clock while they run, if it competes.
function accounts.running_of(account)
  return account.loan == GIFT and 0 or account.leased
end

-- The least expected cost of a task of the tenant. It guides the choice, and is not charged.
-- call.mean is the expected duration of a task that runs now: the mean weighted by worker time, when the call began.
function accounts.expected_of(call, account)
  return call.queue.share == SHARE_COUNT and 1 or math.max(account.estimate, call.mean, 1)
end

-- Returns a function that gives a tenant's virtual time, by which tenants are compared, and how far a dispatch will
-- move it. Each running lease counts as at least its estimate.
function accounts.comparison(call, slots_per_weight)
  if call.queue.share == SHARE_COUNT then return function(weight, base) return base, 1 / weight, 0 end end
  local mean, at = math.max(call.mean, 1), call.at
  return function(weight, base, starts, expected, leased, _, ready)
    if expected < mean then expected = mean end
    local room = weight * slots_per_weight - leased
    if leased > 0 then
      local age, least = leased * at - starts, leased * expected
      if age < least then age = least end
      base = base + age / weight
    end
    if room < 1 then return base, expected / weight, 0 end
    return base, expected / weight, math.min(room - room % 1, ready)
  end
end

-- A tenant's entitlement and service.
function accounts.books_of(call, account)
  local books = call.books[account]
  if not books then
    books = BOOKS.unpack(account.books)
    call.books[account] = books
  end
  return books
end

-- The tenant's service, including running leases.
function accounts.delivered_to(call, account)
  local age = account.leased * call.at - account.starts
  return accounts.books_of(call, account).delivered + (call.queue.share == SHARE_TIME and age or 0)
end

-- The bytes that a thing of this name and size counts for its tenant (lua/KEYS.md says how that was measured).
function accounts.bytes_of(name, size)
  return ITEM_BYTES + NAMED_IN * #name + size
end

-- Adds to the bytes that the tenant keeps in the store.
function accounts.add_bytes(call, account, bytes)
  local books = accounts.books_of(call, account)
  books.bytes = books.bytes + bytes
end

-- The unit of service has changed since the account was written: all tenants start anew together, and running leases
-- count from then on.
local function renew(call, account)
  local queue, books = call.queue, accounts.books_of(call, account)
  account.base, account.starts, account.estimate = 0, account.leased * queue.epoch_at, 0
  books.epoch, books.delivered, books.entitled = queue.epoch, 0, 0
end

-- The account of a tag, from its record that was read; changes by the call since then are in call.packed.
function accounts.unpack(call, tag, packed)
  if call.accounts[tag] then return call.accounts[tag] end
  local account, epoch = ACCOUNT.unpack(call.packed[tag] or packed), call.queue.epoch
  account.tag, call.accounts[tag] = tag, account
  if call.touched[tag] then call.touched[tag] = false end
  if epoch > 0 and struct.unpack('<I', account.books) ~= epoch then renew(call, account) end
  return account
end

-- True if a packed account was written since the unit of service changed.
local function is_renewed(call, packed)
  local _, _, _, _, _, _, _, _, _, _, _, _, length, at = struct.unpack(HEAD, packed)
  return struct.unpack('<I', packed, at + length + 1 + packed:byte(at + length)) == call.queue.epoch
end

-- Reads the tenants of these tags that this call has not met yet, in one command. They stay packed until they are asked
-- for (false: there is none), except those that were written before the unit of service changed.
function accounts.read(call, tags)
  local known, missing, n = call.packed, tags, #tags
  if next(known) then
    missing, n = {}, 0
    for _, tag in ipairs(tags) do
      if known[tag] == nil then
        n = n + 1
        missing[n] = tag
      end
    end
  end
  if n == 0 then return end
  local found = redis.call('HMGET', call.prefix .. 'accounts', unpack(missing))
  for i = 1, n do known[missing[i]] = found[i] end
  if call.queue.epoch == 0 then return end
  for i = 1, n do
    if found[i] and not is_renewed(call, found[i]) then accounts.unpack(call, missing[i], found[i]) end
  end
end

-- The account of a tag; nil if there is none.
function accounts.at(call, tag)
  local account = call.accounts[tag]
  if account then return account end
  local packed = call.packed[tag]
  if packed == nil then
    packed = redis.call('HGET', call.prefix .. 'accounts', tag)
    call.packed[tag] = packed
  end
  return packed and accounts.unpack(call, tag, packed) or nil
end

local function new_account(call, name)
  local queue = call.queue
  queue.numbers = queue.numbers + 1
  local tag = struct.pack('<I', queue.numbers)
  local account = ACCOUNT.new{weight = accounts.DEFAULT_WEIGHT, name = name, tag = tag, is_odd = 1,
    details = DETAILS.new{tag = tag}}
  call.packed[tag], call.accounts[tag], call.books[account] = false, account, BOOKS.new{epoch = queue.epoch}
  return account
end

-- The account of a tenant of that name; a new one is kept only if the call touches it. `packed`: its details, if they
-- have been read (false: there is no such tenant). They stay packed until they are asked for.
function accounts.named(call, name, packed)
  local named = call.named
  local account = named[name]
  if account then return account end
  packed = packed or redis.call('HGET', call.prefix .. 'tenants', name)
  account = packed and accounts.at(call, packed:sub(1, 4)) or new_account(call, name)
  named[name], table_in(call, 'details')[name] = account, packed
  return account
end

-- Reads the tenants of these packed details; those of tenants that do not exist are false.
function accounts.read_of(call, details)
  local tags = {}
  for _, packed in ipairs(details) do
    if packed then tags[#tags + 1] = packed:sub(1, 4) end
  end
  accounts.read(call, tags)
end

-- The accounts of tenants by their names and packed details. Tenants that do not exist are left out.
function accounts.of_details(call, names, details)
  local found = {}
  accounts.read_of(call, details)
  for i, name in ipairs(names) do
    if details[i] then found[#found + 1] = accounts.named(call, name, details[i]) end
  end
  return found
end

-- The details of a tenant. While they are open the tenant is odd: they may come to matter.
function accounts.details_of(call, account)
  local details, name = account.details, account.name
  account.is_odd = 1
  if not details then
    local packed = call.details and call.details[name] or redis.call('HGET', call.prefix .. 'tenants', name)
    details = DETAILS.unpack(packed)
    details.packed, account.details = packed, details
  end
  return details
end

-- How many tasks of a tenant that has been read by its name are pending, and delayed.
function accounts.later_of(call, account)
  local details = account.details
  if details then return details.pending, details.delayed end
  local _, pending, delayed = struct.unpack(LATER, call.details[account.name])
  return pending, delayed
end

-- Marks a tenant to be seated and written back when the call closes.
function accounts.touch(call, account)
  local touched, tag = call.touched, account.tag
  if touched[tag] == nil then touched[tag], touched[#touched + 1] = false, tag end
  return account
end

function accounts.touch_named(call, name)
  return accounts.touch(call, accounts.named(call, name))
end

-- Counts tasks of the tenant, and of the queue, that are (no longer) `pending`, `delayed` or `dead`; returns how many
-- of the tenant's are now.
function accounts.count(call, account, name, count)
  local details = accounts.details_of(call, account)
  details[name], call.queue[name] = details[name] + count, call.queue[name] + count
  return details[name]
end

-- True if details matter to the fair pick.
local function are_odd(details)
  return details.blocked > 0 or details.limited > 0 or details.grouped > 0 or details.cause > 0
end

-- Packs an account with its books.
function accounts.pack(call, account)
  local books = call.books[account]
  if books then
    books.seen_at = call.at
    account.books = BOOKS.pack(books)
  end
  return ACCOUNT.pack(account)
end

-- Writes the tenants that the call touched.
function accounts.write(call)
  local touched, opened, packed, fields, changed, n = call.touched, call.accounts, call.packed, {}, false, 0
  for i = 1, #touched do
    local tag = touched[i]
    local account = opened[tag]
    if account and account.details then
      local details, new = account.details, DETAILS.pack(account.details)
      account.is_odd = are_odd(details) and 1 or 0
      if new ~= details.packed then
        changed = changed or {}
        changed[#changed + 1], changed[#changed + 2], details.packed = account.name, new, new
      end
    end
    n = n + 2
    fields[n - 1] = tag
    fields[n] = account and accounts.pack(call, account) or packed[tag]
  end
  write('HSET', call.prefix .. 'accounts', fields)
  if changed then write('HSET', call.prefix .. 'tenants', changed) end
end
