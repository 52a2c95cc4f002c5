-- Tenants as a call knows them: read once, changed in place, written back when it closes (10_tenants.lua).

-- In units of the queue's mean task, so that weight and rate are one where tasks are alike or costs are not known.
local function rate_of(call, weight, estimate)
  if call.queue.share == SHARE_COUNT or estimate == 0 then return weight end
  return weight * call.queue.estimate / estimate
end

-- One constructor with all fields: this runs for every tenant that is drawn, and growing a table costs more than it.
local function new_tenant(call, name, weight, vtime, estimate, epoch, slot, ready, delayed, leased, dead, done,
    delivered, entitled, joined, held, bytes, spent, voids, class, barred, listed, levels, limited)
  local t = {
    name = name, weight = weight, vtime = vtime, estimate = estimate, epoch = epoch, slot = slot, ready = ready,
    delayed = delayed, leased = leased, dead = dead, done = done, delivered = delivered, entitled = entitled,
    joined = joined, held = held, bytes = bytes, spent = spent, voids = voids, class = class, barred = barred,
    listed = listed, levels = levels, limited = limited,
    counted = slot ~= OUT,  -- its weight is in queue.weight_sum
    touched = false, rerated = false,
    cause = 0,  -- with out_at and since: see limits.keep_out
  }
  if epoch ~= call.queue.epoch then  -- the unit of service changed: everyone starts anew, together
    t.epoch, t.vtime, t.estimate, t.delivered, t.entitled, t.joined = call.queue.epoch, 0, 0, 0, 0, 0
    t.rerated = true
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
  return new_tenant(call, name, DEFAULT_WEIGHT, 0, 0, call.queue.epoch, OUT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0)
end

local function pack_tenant(t)
  local packed = struct.pack(TENANT_FORMAT, t.weight, t.vtime, t.estimate, t.epoch, t.slot, t.ready, t.delayed,
    t.leased, t.dead, t.done, t.delivered, t.entitled, t.joined, t.held, t.bytes, t.spent, t.voids, t.class, t.barred,
    t.listed, t.levels, t.limited)
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
