-- Tenants as a call knows them: read once, changed in place, written back when it closes (16_close.lua).
--
-- A tenant has a number, and stands under it, as four bytes (its *tag*), wherever the fair pick looks: the hash
-- `accounts` has what every dispatch asks and changes, `tenants` finds the tag by the name, and has with it the details
-- that few tenants have (is_odd) or few calls ask.
--
-- The account is the tenant's virtual time, service / weight, in a form that needs no change while time passes:
--
--   base + (leased * now - starts) / weight      `starts` is the sum of the times at which its running leases began
--
-- With `share = time` service is worker time, and what runs counts while it runs; what ends a lease moves its time from
-- the second term to the first. With `share = count` it is `base`, one task for each dispatch. Times are relative to
-- `queue.origin`, so that sums of thousands of them stay exact.

local accounts = {}  -- what other sections call
do

local NO_LOAN, LOAN, GIFT = 0, 1, 2  -- of account.loan: what the tenant's one lease is, if it is one (11_reserve.lua)
accounts.NO_LOAN, accounts.LOAN, accounts.GIFT = NO_LOAN, LOAN, GIFT

local DEFAULT_WEIGHT = 1000  -- weights are kept in thousandths, as integers, so that sums cannot drift

-- How long a tenant's running leases have run, added up.
local function age_of(call, t)
  return t.leased * call.at - t.starts
end
accounts.age_of = age_of

function accounts.vtime_of(call, t)
  if call.queue.share == SHARE_COUNT or t.loan == GIFT then return t.base end
  return t.base + age_of(call, t) / t.weight
end

-- How many leases of the tenant move the clock while they run, if it competes.
function accounts.running_of(t)
  return t.loan == GIFT and 0 or t.leased
end

-- What a running task, looked at now, takes in all: the mean over worker time.
local function mean_of(q)
  return q.estimate > 0 and q.estimate_sq / q.estimate or 0
end
accounts.mean_of = mean_of

-- What a task of the tenant is expected to cost at least. It only guides the choice, and is charged to nobody.
local function expected_of(call, t)
  local q, expected = call.queue, t.estimate
  if q.share == SHARE_COUNT then return 1 end
  local mean = mean_of(q)
  if mean > expected then expected = mean end
  return expected > 1 and expected or 1
end
accounts.expected_of = expected_of

-- The virtual time by which tenants are compared: as if each running lease took at least what is expected of it. It is
-- kept, since a round of picks asks for it again and again; what changes an account drops it.
function accounts.tentative_of(call, t)
  local known = t.tentative
  if known then return known end
  known = t.base
  if call.queue.share == SHARE_TIME and t.leased > 0 then
    known = known + math.max(t.leased * expected_of(call, t), age_of(call, t)) / t.weight
  end
  t.tentative = known
  return known
end

-- The tenant's part of the dispatches, to be: its weight / what its tasks take, those that run now included.
function accounts.rate_of(call, t)
  if call.queue.share == SHARE_COUNT then return t.weight end
  local ms = t.estimate > 0 and t.estimate or mean_of(call.queue)
  if t.leased > 0 then ms = math.max(ms, age_of(call, t) / t.leased) end
  return t.weight / math.max(ms, 1)
end

-- The unit of service changed: everyone starts anew, together, with what runs from then on.
local function renew(q, t)
  t.base, t.starts, t.estimate, t.epoch = 0, t.leased * q.epoch_at, 0, q.epoch
end

-- Reads the tenants of these tags that this call has not met yet, in one command. They stay packed until somebody needs
-- them: a draw looks at many and serves few.
function accounts.read(call, tags)
  local packed, missing, n = call.packed, {}, 0
  for i = 1, #tags do
    local tag = tags[i]
    if packed[tag] == nil then
      packed[tag], n = false, n + 1
      missing[n] = tag
    end
  end
  if n == 0 then return end
  local found = redis.call('HMGET', key(call, 'accounts'), unpack(missing))
  for i = 1, n do packed[missing[i]] = found[i] end
end

-- What a draw asks of a tenant: its account, or the head of it; nil if there is none.
function accounts.look(call, tag)
  local t = call.accounts[tag] or call.looks[tag]
  if t then return t end
  local packed = call.packed[tag]
  if not packed then return nil end
  t = LOOK.unpack(packed)
  t.tag = tag
  if t.epoch ~= call.queue.epoch then renew(call.queue, t) end
  call.looks[tag] = t
  return t
end

-- The account of a tag; nil if there is none.
local function at(call, tag)
  local t = call.accounts[tag]
  if t then return t end
  if call.packed[tag] == nil then accounts.read(call, {tag}) end
  local packed = call.packed[tag]
  if not packed then return nil end
  t = ACCOUNT.unpack(packed)
  t.tag, t.is_servable = tag, t.slot ~= 0
  if t.epoch ~= call.queue.epoch then
    renew(call.queue, t)
    t.delivered, t.entitled, t.joined = 0, 0, 0
  end
  call.accounts[tag] = t
  return t
end
accounts.at = at

local function new_account(call, name)
  local q = call.queue
  q.numbers = q.numbers + 1
  local tag = struct.pack('<I', q.numbers)
  local t = {
    weight = DEFAULT_WEIGHT, base = 0, starts = 0, estimate = 0, leased = 0, epoch = q.epoch, loan = NO_LOAN, ready = 0,
    slot = 0, class = 0, counted = 0, listed = 0, is_odd = 0, joined = 0, entitled = 0, delivered = 0, done = 0,
    bytes = 0, name = name, tag = tag, tentative = false, is_touched = false, is_servable = false,
    details = {tag = tag, held = 0, delayed = 0, dead = 0, spent = 0, voids = 0, levels = 0, barred = 0, limited = 0,
      cause = 0, out_at = 0, since = 0, packed = false},
  }
  call.accounts[tag] = t
  return t
end

local function unpack_details(packed)
  local details = DETAILS.unpack(packed)
  details.packed = packed
  return details
end

-- The account of a tenant of that name; one that nobody knows is kept only if the call touches it. `packed`: its
-- details, if they have been read.
function accounts.named(call, name, packed)
  local named = calls.table_of(call, 'named')
  local t = named[name]
  if t then return t end
  packed = packed or redis.call('HGET', key(call, 'tenants'), name)
  if packed then
    local details = unpack_details(packed)
    t = at(call, details.tag)
    if t then t.details = t.details or details end
  end
  t = t or new_account(call, name)
  named[name] = t
  return t
end

-- What is seldom asked of a tenant.
function accounts.details_of(call, t)
  if not t.details then t.details = unpack_details(redis.call('HGET', key(call, 'tenants'), t.name)) end
  return t.details
end

-- Has a tenant seated and written back when the call closes.
function accounts.touch(call, t)
  if not t.is_touched then
    t.is_touched = true
    call.touched[#call.touched + 1] = t
  end
  return t
end

function accounts.touch_named(call, name)
  return accounts.touch(call, accounts.named(call, name))
end

-- Writes the tenants that the call touched.
function accounts.write(call)
  local fields, details, n = {}, {}, 0
  for _, t in ipairs(call.touched) do
    local d = t.details
    if d then
      t.is_odd = (d.barred > 0 or d.limited > 0 or d.voids > 0 or d.levels > 0 or d.cause > 0) and 1 or 0
      local packed = DETAILS.pack(d)
      if packed ~= d.packed then details[#details + 1], details[#details + 2] = t.name, packed end
    end
    fields[n + 1], fields[n + 2], n = t.tag, ACCOUNT.pack(t), n + 2
  end
  write('HSET', key(call, 'accounts'), fields)
  write('HSET', key(call, 'tenants'), details)
end

end
