-- Tenants as a call knows them: read once, changed in place, written back when it closes (10_tenants.lua).

--
-- The account of a tenant is its virtual time, service / weight, in a form that needs no change while time passes:
--
--   base + (leased * now - starts) / weight      `starts` is the sum of the times at which its running leases began
--
-- With `share = time` service is worker time, and what runs counts while it runs; what ends a lease moves its time from
-- the second term to the first. With `share = count` it is `base`, one task for each dispatch. Times are relative to
-- `queue.origin`, so that sums of thousands of them stay exact.

-- How long a tenant's running leases have run, added up.
local function age_of(call, t)
  return t.leased * call.at - t.starts
end

local function vtime_of(call, t)
  if call.queue.share == SHARE_COUNT then return t.base end
  return t.base + age_of(call, t) / t.weight
end

-- What a running task, looked at now, takes in all: the mean over worker time.
local function mean_of(q)
  return q.estimate > 0 and q.estimate_sq / q.estimate or 0
end

-- What a task of the tenant is expected to cost at least. It only guides the choice, and is charged to nobody.
local function expected_of(call, t)
  if call.queue.share == SHARE_COUNT then return 1 end
  return math.max(t.estimate, mean_of(call.queue), 1)
end

-- The virtual time by which tenants are compared: as if each running lease took at least what is expected of it. It is
-- kept, since a round of picks asks for it again and again; what changes an account drops it.
local function tentative_of(call, t)
  local known = t.tentative
  if known then return known end
  known = t.base
  if call.queue.share == SHARE_TIME then
    known = known + math.max(t.leased * expected_of(call, t), age_of(call, t)) / t.weight
  end
  t.tentative = known
  return known
end

-- The tenant's part of the dispatches, to be: its weight / what its tasks take, those that run now included.
local function rate_of(call, t)
  if call.queue.share == SHARE_COUNT then return t.weight end
  local ms = t.estimate > 0 and t.estimate or mean_of(call.queue)
  if t.leased > 0 then ms = math.max(ms, age_of(call, t) / t.leased) end
  return t.weight / math.max(ms, 1)
end

-- One constructor with all fields: this runs for every tenant that is served, and growing a table costs more than it.
local function new_tenant(call, name, weight, base, starts, leased, estimate, epoch, slot, ready, delayed, dead, done,
    delivered, entitled, joined, held, bytes, spent, voids, class, barred, listed, levels, limited, counted)
  local t = {
    name = name, weight = weight, base = base, starts = starts, leased = leased, estimate = estimate, epoch = epoch,
    slot = slot, ready = ready, delayed = delayed, dead = dead, done = done, delivered = delivered,
    entitled = entitled, joined = joined, held = held, bytes = bytes, spent = spent, voids = voids, class = class,
    barred = barred, listed = listed, levels = levels, limited = limited,
    counted = counted,             -- 1: its weight is in queue.weight_sum, its leases are in queue.running
    is_servable = slot ~= OUT,     -- it is in queue.servable
    touched = false, tentative = false,
    cause = 0,  -- with out_at and since: see limits.keep_out
  }
  local q = call.queue
  if epoch ~= q.epoch then  -- the unit of service changed: everyone starts anew, together, with what runs from then on
    t.epoch, t.base, t.starts, t.estimate = q.epoch, 0, leased * q.epoch_at, 0
    t.delivered, t.entitled, t.joined = 0, 0, 0
  end
  call.tenants[name] = t
  return t
end

local function unpack_tenant(call, name, packed)
  if packed then
    local t = new_tenant(call, name, struct.unpack(TENANT_FORMAT, packed))
    if #packed > TENANT_BYTES then t.cause, t.out_at, t.since = struct.unpack('<Bdd', packed, TENANT_BYTES + 1) end
    return t
  end
  return new_tenant(call, name, DEFAULT_WEIGHT, 0, 0, 0, 0, call.queue.epoch, OUT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0)
end

local function pack_tenant(t)
  local packed = struct.pack(TENANT_FORMAT, t.weight, t.base, t.starts, t.leased, t.estimate, t.epoch, t.slot, t.ready,
    t.delayed, t.dead, t.done, t.delivered, t.entitled, t.joined, t.held, t.bytes, t.spent, t.voids, t.class, t.barred,
    t.listed, t.levels, t.limited, t.counted)
  if t.cause == 0 then return packed end
  return packed .. struct.pack('<Bdd', t.cause, t.out_at, t.since)
end

-- Reads the named tenants that this call has not met yet, in one command. They stay packed until somebody needs more
-- of them than their account: a draw looks at many and serves few.
local function read_tenants(call, names)
  local packed, missing = call.packed, {}
  for i = 1, #names do
    local name = names[i]
    if packed[name] == nil then
      packed[name] = false
      missing[#missing + 1] = name
    end
  end
  if #missing == 0 then return end
  for i, text in ipairs(redis.call('HMGET', key(call, 'tenants'), unpack(missing))) do packed[missing[i]] = text end
end

local function tenant(call, name)
  local t = call.tenants[name]
  if t then return t end
  if call.packed[name] == nil then call.packed[name] = redis.call('HGET', key(call, 'tenants'), name) end
  return unpack_tenant(call, name, call.packed[name])
end

-- The tenant's state, to be changed: it is seated and written back when the call closes.
local function touch(call, name)
  local t = tenant(call, name)
  if not t.touched then
    t.touched = true
    call.touched[#call.touched + 1] = t
  end
  return t
end
