-- Limits: what bounds a tenant besides its share, and who is out of the draw for it.
--
-- They stand in the hash `limits`: a tenant's own, and under the empty name those for all who have none of that kind.
-- tenant.limited and queue.limited say whether there are any: where there are none, nothing is read.
--
-- Rate. One number is the whole token bucket (GCRA, ITU-T I.371): `spent`, the time at which it will be full again. A
-- dispatch moves that on by the rate's interval, and is allowed while it is less than `burst` intervals ahead of now.
-- A tenant that has spent its tokens is barred, and parked until it has some: one, or as many as come in REFILL_MS, so
-- that a fast one does not come and go with every task. A pick that is taken back gives its token back.
--
-- Guarantee. A tenant with fewer leased tasks than it is guaranteed is served as if it had just woken (rule 3 of
-- 10_tenants.lua), but that one who is behind goes before it one time in eight only, until it has them. Its account
-- goes on, so it draws less of what is left; the slots that it does not use are everybody's.

local limits = {
  names = {'cap', 'guaranteed', 'rate', 'burst', 'queued', 'queued_bytes', 'delayed', 'dead'},  -- KEYS.md
}
local UNSET = -1                                      -- of a tenant's limit: the one for all holds
local BAR_PAUSED, BAR_CLOSED, BAR_SPENT = 1, 2, 4     -- bits of tenant.barred, and the first two of queue.barred
do

local REFILL_MS = 20

-- One constructor, as for tenants: growing a table costs more than filling it.
local function new_limits(cap, guaranteed, rate, burst, queued, queued_bytes, delayed, dead)
  return {
    cap = cap, guaranteed = guaranteed, rate = rate, burst = burst, queued = queued, queued_bytes = queued_bytes,
    delayed = delayed, dead = dead,
  }
end

-- What was set for a tenant, or (empty name) for all.
function limits.set_for(call, name)
  local packed = redis.call('HGET', key(call, 'limits'), name)
  if packed then return new_limits(struct.unpack(LIMITS_FORMAT, packed)) end
  local unset = name == '' and 0 or UNSET
  return new_limits(unset, unset, unset, unset, unset, unset, unset, unset)
end

-- The limits that hold for a tenant; 0 is none.
function limits.of(call, t)
  local known = call.limits
  local for_all = known['']
  if not for_all then
    for_all = limits.set_for(call, '')
    known[''] = for_all
  end
  if t.limited == 0 then return for_all end
  local own = known[t.name]
  if own then return own end
  own = limits.set_for(call, t.name)
  for limit, value in pairs(for_all) do
    if own[limit] == UNSET then own[limit] = value end
  end
  known[t.name] = own
  return own
end

-- Whether one more task of the tenant may be leased.
function limits.is_eligible(call, t)
  if t.ready == 0 or t.barred ~= 0 then return false end
  if t.limited + call.queue.limited == 0 then return true end
  local cap = limits.of(call, t).cap
  return cap == 0 or t.leased < cap
end

function limits.is_guaranteed(call, t)
  return t.limited == 1 and t.leased < limits.of(call, t).guaranteed
end

-- Whether all that the tenant has is what it is guaranteed: then it does not compete with the others.
function limits.is_within_guarantee(call, t)
  if t.limited == 0 then return false end
  local guaranteed = limits.of(call, t).guaranteed
  return guaranteed > 0 and t.leased <= guaranteed
end

-- Sets or clears a reason for which a tenant, or the queue, is not served.
function limits.bar(thing, reason, is_barred)
  thing.barred = is_barred and bit.bor(thing.barred, reason) or bit.band(thing.barred, bit.bnot(reason))
end

-- Notes what keeps a tenant out of the draw that has ready tasks, and since when. It stays noted when the tenant is let
-- in again, until it has nothing ready: the bits of `barred`, or 8, as many leased tasks as its cap allows.
function limits.keep_out(call, t)
  local cause = t.ready > 0 and (t.barred ~= 0 and t.barred or 8) or 0
  if cause ~= 0 and (t.slot ~= OUT or t.cause == 0) then t.out_at = call.now end
  t.cause, t.since = cause, 0
end

-- Tells whoever claims once that a tenant was kept out, why, and from when until when.
function limits.tell_kept(call, t)
  if call.kept[t.name] then return end
  call.kept[t.name] = true
  for _, value in ipairs({t.name, t.cause, t.out_at, t.since}) do table.insert(call.kept, value) end
end

-- Bars a tenant that has no token, or lets it in again.
function limits.meter(call, t)
  local rate, burst = limits.of(call, t).rate, limits.of(call, t).burst
  if rate == 0 then return limits.bar(t, BAR_SPENT, false) end
  local interval = 1000 / rate
  if burst == 0 then burst = math.max(1, math.floor(rate)) end  -- what comes in a second
  t.spent = math.min(t.spent, call.now + burst * interval)      -- it may have been spent at another rate
  local next_at = t.spent - (burst - 1) * interval
  if next_at > call.now then
    local refill = math.min(burst, math.max(1, math.floor(REFILL_MS / interval)))
    local unpark_at = math.ceil(next_at + (refill - 1) * interval)
    call.unpark_at = math.min(call.unpark_at or unpark_at, unpark_at)
    call.parked[t.name] = unpark_at
  end
  limits.bar(t, BAR_SPENT, next_at > call.now)
end

-- Whether a cap for all leaves tenants room that it did not leave before.
local function is_wider(before, after)
  return before > 0 and (after == 0 or after > before)
end

-- The limits for all have changed: tokens are counted anew by the next ticks, and tenants that have room under the new
-- cap are let in by them, some at a time.
function limits.recheck_all(call, before, after)
  redis.call('ZUNIONSTORE', key(call, 'parked'), 1, key(call, 'parked'), 'WEIGHTS', 0)
  if not is_wider(before.cap, after.cap) then return end
  call.queue.sweeping = 1
  redis.call('DEL', key(call, 'sweep'))
end

-- Goes on letting in tenants that a cap for all kept out: a page of all tenants.
function limits.sweep(call)
  if call.queue.sweeping == 0 then return end
  local at, names = key(call, 'sweep'), {}
  local page = redis.call('HSCAN', key(call, 'tenants'), redis.call('GET', at) or '0', 'COUNT', TASKS_PER_CALL)
  for i = 1, #page[2], 2 do
    names[#names + 1], call.packed[page[2][i]] = page[2][i], page[2][i + 1]
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local t = tenant(call, name)
    if t.ready > 0 and t.slot == OUT then touch(call, name) end
  end
  if page[1] == '0' then
    call.queue.sweeping = 0
    redis.call('DEL', at)
  else
    redis.call('SET', at, page[1])
  end
  call.is_changed = true
end

-- Takes a token for a dispatch, or (count = -1) gives it back.
function limits.spend(call, t, count)
  local rate = limits.of(call, t).rate
  if rate == 0 then return end
  t.spent = math.max(t.spent, call.now) + count * 1000 / rate
  limits.meter(call, t)
end

function limits.write_parked(call)
  local members = {}
  for name, unpark_at in pairs(call.parked) do
    members[#members + 1], members[#members + 2] = unpark_at, name
  end
  write('ZADD', key(call, 'parked'), members)
end

-- Lets in whoever has tokens again.
function limits.unpark(call, limit)
  local names = redis.call('ZRANGE', key(call, 'parked'), '-inf', call.now, 'BYSCORE', 'LIMIT', 0, limit)
  if #names == 0 then return end
  redis.call('ZREM', key(call, 'parked'), unpack(names))
  read_tenants(call, names)
  for _, name in ipairs(names) do limits.meter(call, touch(call, name)) end
end

end
