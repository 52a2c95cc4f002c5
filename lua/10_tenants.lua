-- Who is served next: the fair pick, and the structures that make it O(1) in the number of tenants.
--
-- Theory. Every tenant has a virtual time: service received / weight (08_accounts.lua). The queue has a clock: the
-- virtual time that a perfectly served tenant would show. A tenant is *eligible* while it has ready tasks, is not
-- blocked, and has fewer leased tasks than its cap allows (6). It *competes* while it is eligible and has more leased
-- tasks than it is guaranteed.
--
-- 1. With `share = time` the clock moves by N / W a ms, where N is how many leases those that compete have, and W the
--    sum of their weights; with `share = count` each dispatch to one that competes moves it by 1 / W. What a tenant is
--    entitled to is booked by it. The *level*, at which tenants begin, moves along, and is never below the virtual time
--    of a tenant with a slot that is served: without that, tenants that come and go hold the clock back while they
--    wait, and those that come to stay begin far behind the others. Running leases count while they run, so a tenant
--    cannot take more than its share by having tasks that are longer than anybody expects; estimates only guide the
--    choice.
-- 2. The eligible tenant with the lowest virtual time is served, running leases counted as at least what is expected
--    of them. Up to FEW tenants are all looked at. Of more, two are drawn by rate, weight / what the tenant's tasks
--    take: a lottery's error grows with the square root of the dispatches, the better of two draws keeps it constant.
--    While it is still ahead of the level by more than half a task and the usual spread, others are drawn, REDRAWS at
--    most. And a cursor looks at one more tenant with each pick, so that nobody whose rate is wrong waits for luck.
-- 3. A tenant that becomes eligible starts at max(own virtual time, level): idling banks no credit, coming back sheds
--    no debt. One that does so at the level goes on the wake list, which is served first, so that a quiet tenant does
--    not wait for luck. A drawn tenant that is behind the level by more than a task of its own goes before it if a
--    coin says so: a stream of newly active tenants cannot starve the backlogged, nor the other way round. A tenant
--    stands on the list at most once (`listed`): one that stops being eligible leaves its entry behind, and is
--    dropped when that is popped, or gets its place back.
-- 4. A draw throws a dart. Tenants stand in classes by rate (powers of two), densely numbered from 1; each slot is as
--    long as the top of its class. One random number names class, slot and the place inside the slot, and hits if
--    that place is below the tenant's rate: a few throws, whatever the rates or the number of tenants. Leaving moves
--    the class's last tenant into the hole. A tenant whose rate is no longer between two fifths of its class's top
--    and the top changes class whenever it is touched; a dart that meets one touches it.
-- 5. Membership has one rule in one place: `close` seats every tenant that the call touched. No path that makes work
--    ready, or takes it away, can forget to.
-- 6. A tenant that is blocked (paused, closed by the clock, out of tokens), or has as many leased tasks as its cap
--    allows, is not in the draw and costs it nothing; what ends that brings it back (09_limits.lua). When the cap for
--    all has just been lowered, tenants without room may stand in slots: drawing one is a miss, and takes its slot
--    from it. When it has been raised, ticks let
--    in the tenants that were out, page by page.
--
-- The bound that follows: over any time in which it and others wait, a tenant's worker time is no less than its share
-- less three of the longest leases (tests/lua/test_shares.py). A newcomer whose tasks are much longer than those that
-- the queue knows may be ahead by five of its own at first; it then gets none until that is paid back.

-- Slots of a class, seen through the changes that this call has not written yet.
local function slot_field(class, slot)
  return class .. ':' .. slot
end

local function tenant_in(call, class, slot)
  local field = slot_field(class, slot)
  return call.slots[field] or redis.call('HGET', key(call, 'slots'), field)
end

local function take_slot(call, t)
  local classes, _, class = call.queue.classes, math.frexp(rate_of(call, t))
  t.class, t.slot = class, (classes[class] or 0) + 1
  classes[class] = t.slot
  call.slots[slot_field(class, t.slot)] = t.name
end

local function free_slot(call, t)
  local classes, class = call.queue.classes, t.class
  local last = classes[class]
  if t.slot ~= last then
    local moved = touch(call, tenant_in(call, class, last))
    moved.slot = t.slot
    call.slots[slot_field(class, t.slot)] = moved.name
  end
  call.slots[slot_field(class, last)] = false
  classes[class] = last - 1
  t.slot = OUT
end

-- Whether a rate has left the class for which the tenant was given its slot.
local function is_outside(rate, top)
  return rate > top or rate < 0.4 * top
end

-- Books what the tenant was entitled to since that was last booked.
local function accrue(call, t)
  t.entitled = t.entitled + t.weight * (call.queue.clock - t.joined)
  t.joined = call.queue.clock
end

-- Counts the tenant among the eligible and among those that compete, or no longer, as its state says.
local function recount(call, t)
  local q, is_servable = call.queue, limits.is_eligible(call, t)
  local counted = is_servable and not limits.is_within_guarantee(call, t) and 1 or 0
  if is_servable ~= t.is_servable then
    t.is_servable, q.servable = is_servable, q.servable + (is_servable and 1 or -1)
  end
  if counted == t.counted then return end
  if counted == 1 then t.joined = q.clock else accrue(call, t) end
  local sign = counted - t.counted
  t.counted, q.weight_sum, q.running = counted, q.weight_sum + sign * t.weight, q.running + sign * t.leased
end

-- A lease of the tenant begins now, or (count = -1) has not begun after all.
local function count_lease(call, t, count)
  local q = call.queue
  t.leased, t.starts, t.tentative = t.leased + count, t.starts + count * call.at, false
  q.leased = q.leased + count
  if t.counted == 1 then q.running = q.running + count end
end

local function wake(call, t)
  t.slot = AWAKE
  if t.listed == 1 then return end
  t.listed, call.woken[#call.woken + 1] = 1, t.name
end

local function arrive(call, t)
  call.readied = true
  local behind = call.queue.level - vtime_of(call, t)
  if behind < 0 and not limits.is_guaranteed(call, t) then return take_slot(call, t) end
  t.base, t.tentative = t.base + math.max(behind, 0), false
  wake(call, t)
end

-- Puts a tenant where its state says it belongs. Every touched tenant passes here once, at the end.
local function seat(call, t)
  recount(call, t)
  if not t.is_servable then
    limits.keep_out(call, t)
    if t.slot > 0 then free_slot(call, t) end
    t.slot = OUT
  elseif t.slot == OUT then
    t.since = call.now
    arrive(call, t)
  elseif limits.is_guaranteed(call, t) then
    if t.slot > 0 then free_slot(call, t) end
    wake(call, t)
  elseif t.slot == AWAKE then
    if t.listed == 0 then take_slot(call, t) end  -- served from the wake list, and has more
  elseif is_outside(rate_of(call, t), 2 ^ t.class) then
    free_slot(call, t)
    take_slot(call, t)
  end
end

-- Charges a dispatch, where tasks are what is shared; returns by how much that moved the clock.
local function charge(call, t)
  local q = call.queue
  if q.share == SHARE_TIME then return 0 end
  local moved = t.counted == 1 and 1 / q.weight_sum or 0
  t.base, t.delivered = t.base + 1 / t.weight, t.delivered + 1
  q.clock, q.level = q.clock + moved, q.level + moved
  return moved
end

local function refund(call, t, moved)
  local q = call.queue
  if q.share == SHARE_TIME then return end
  t.base, t.delivered = t.base - 1 / t.weight, t.delivered - 1
  q.clock, q.level = q.clock - moved, q.level - moved
end

local function towards(mean, value, part)
  return mean == 0 and value or mean + (value - mean) / part
end

-- Books the end of a lease: the time that it took, up to `until_ms`, goes to the account for good. No task takes less
-- than a millisecond, or free ones would be served for ever; what that adds moves the clock too. Estimates learn from
-- leases that were worked to an end.
local function charge_lease(call, t, began_at, until_ms, is_worked)
  local q = call.queue
  local start = math.max(began_at, q.epoch_at)
  local took = math.max(until_ms - q.origin - start, 1)
  t.leased, t.starts, q.leased = t.leased - 1, t.starts - start, q.leased - 1
  if t.counted == 1 then q.running = q.running - 1 end
  if q.share == SHARE_COUNT then return end
  t.base, t.delivered = t.base + took / t.weight, t.delivered + took
  local unseen = took - (call.at - start)
  if unseen > 0 and t.counted == 1 then
    q.clock, q.level = q.clock + unseen / q.weight_sum, q.level + unseen / q.weight_sum
  end
  if not is_worked then return end
  t.estimate = towards(t.estimate, took, 8)
  q.estimate, q.estimate_sq = towards(q.estimate, took, 64), towards(q.estimate_sq, took * took, 64)
end

-- Seats all touched tenants, so that darts can be thrown (again).
local function seat_all(call)
  local i = 1
  while i <= #call.touched do  -- seating one tenant may touch another
    seat(call, call.touched[i])
    i = i + 1
  end
end

local function write_slots(call)
  local fields, gone = {}, {}
  for field, name in pairs(call.slots) do
    if name then
      fields[#fields + 1] = field
      fields[#fields + 1] = name
    else
      gone[#gone + 1] = field
    end
  end
  write('HSET', key(call, 'slots'), fields)
  write('HDEL', key(call, 'slots'), gone)
end

-- Writes all that the call changed, each value once, and wakes the servers if they wait for work that there now is.
local function close(call)
  local q, fields = call.queue, {}
  seat_all(call)
  write_slots(call)
  limits.write_parked(call)
  for _, t in ipairs(call.touched) do
    fields[#fields + 1] = t.name
    fields[#fields + 1] = pack_tenant(t)
  end
  write('HSET', key(call, 'tenants'), fields)
  write('RPUSH', key(call, 'wake'), call.woken)
  if q.hungry == 1 and call.readied and q.barred == 0 then
    q.hungry = 0
    announce(call, '1')
  end
  q.now = call.now
  redis.call('SET', key(call, 'queue'), pack_queue(q))
  publish(call)
end
