-- Who is served next: the fair pick, and the structures that make it O(1) in the number of tenants.
--
-- Theory. Every tenant has a virtual time: service received / weight. The queue has a clock, the virtual time that a
-- perfectly served tenant would show: each dispatch moves it by cost / (sum of the weights that are eligible). A
-- tenant is *eligible* while it has ready tasks, is not barred, and has fewer leased tasks than its cap allows (6).
--
-- 1. Two draws by rate, and the lower virtual time is served. A tenant's rate is its weight / the cost of its tasks:
--    what its part of the dispatches ought to be. One draw (a lottery) is unbiased, but its error grows with the square
--    root of the dispatches; the second draw keeps it constant (two-choice balancing). It makes good a rate that is
--    off by less than two; drawing by weight alone, long tasks overrun their share and short ones never reach theirs.
-- 2. A draw throws a dart. Tenants stand in classes by rate (powers of two), densely numbered from 1; each slot is as
--    long as the top of its class. One random number names class, slot and the place inside the slot, and hits if that
--    place is below the tenant's rate: a few throws, whatever the rates or the number of tenants. Leaving moves the
--    class's last tenant into the hole. A tenant changes class when a lease's end or a new weight has moved its rate
--    above the class's top or below two fifths of it.
-- 3. Whoever becomes eligible starts at max(own virtual time, clock): idling banks no credit, coming back sheds no
--    debt. Whoever does so at the clock goes to the wake list, which is served first, so that a quiet tenant does not
--    wait for luck. A drawn tenant that is behind the clock by more than a task of its own goes before it if a coin
--    says so: a stream of wakers cannot starve the backlogged, and a backlog that has to catch up with the clock (which
--    leaps when long leases end) cannot starve the wakers. A tenant stands on the list at most once (`listed`): one
--    that stops being eligible leaves its entry behind, and is dropped when that is popped, or gets its place back.
-- 4. Cost is a task (`share = count`) or worker time (`share = time`): the tenant's running estimate is charged at
--    dispatch and corrected when the lease ends (`correct`). No task takes less than a millisecond: free ones would
--    be served for ever.
-- 5. Membership has one rule in one place: `close` seats every tenant that the call touched. No path that makes work
--    ready, or takes it away, can forget to.
-- 6. Whoever is barred (paused, closed by the clock, out of tokens), or has as many leased tasks as its cap allows, is
--    not in the draw and costs it nothing; what ends that brings it back (09_limits.lua). When the cap for all has just
--    been lowered, tenants without room may stand in slots: drawing one is a miss, and takes its slot from it. When it
--    has been raised, who was out comes back with its next settlement, or when it renews a lease.

-- Slots of a class, seen through the changes that this call has not written yet.
local function slot_field(class, slot)
  return class .. ':' .. slot
end

local function tenant_in(call, class, slot)
  local field = slot_field(class, slot)
  return call.slots[field] or redis.call('HGET', key(call, 'slots'), field)
end

local function take_slot(call, t)
  local classes, _, class = call.queue.classes, math.frexp(rate_of(call, t.weight, t.estimate))
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

-- Books what the tenant was entitled to since it was last counted in.
local function accrue(call, t)
  t.entitled = t.entitled + t.weight * (call.queue.clock - t.joined)
  t.joined = call.queue.clock
end

local function count_in(call, t)
  if t.counted then return end
  t.counted, t.joined = true, call.queue.clock
  call.queue.weight_sum = call.queue.weight_sum + t.weight
end

local function count_out(call, t)
  if not t.counted then return end
  accrue(call, t)
  t.counted = false
  call.queue.weight_sum = call.queue.weight_sum - t.weight
end

local function leave(call, t)
  count_out(call, t)
  if t.slot > 0 then free_slot(call, t) end
  t.slot = OUT
end

local function wake(call, t)
  t.slot = AWAKE
  if t.listed == 1 then return end
  t.listed, call.woken[#call.woken + 1] = 1, t.name
end

local function arrive(call, t)
  count_in(call, t)
  call.readied = true
  if t.vtime > call.queue.clock and not limits.is_guaranteed(call, t) then
    take_slot(call, t)
  else
    t.vtime = math.max(t.vtime, call.queue.clock)
    wake(call, t)
  end
end

-- Puts a tenant where its state says it belongs. Every touched tenant passes here once, at the end.
local function seat(call, t)
  if not is_eligible(call, t) then
    limits.keep_out(call, t)
    if t.slot ~= OUT then leave(call, t) end
  elseif t.slot == OUT then
    t.since = call.now
    arrive(call, t)
  elseif limits.is_guaranteed(call, t) then
    if t.slot > 0 then free_slot(call, t) end
    wake(call, t)
  elseif t.slot == AWAKE then
    if t.listed == 0 then take_slot(call, t) end  -- served from the wake list, and has more
  elseif t.rerated then
    local rate, top = rate_of(call, t.weight, t.estimate), 2 ^ t.class
    if rate > top or rate < 0.4 * top then
      free_slot(call, t)
      take_slot(call, t)
    end
  end
end

local function cost_of(call, estimate)
  if call.queue.share == SHARE_COUNT then return 1 end
  if estimate > 0 then return estimate end
  return math.max(call.queue.estimate, 1)
end

-- Charges (or, with a negative cost, refunds) a dispatch to the tenant and to the queue's clock.
local function charge(call, t, cost, weight_sum)
  t.vtime = t.vtime + cost / t.weight
  t.delivered = t.delivered + cost
  call.queue.clock = call.queue.clock + cost / weight_sum
end

-- Replaces the estimate that a lease was charged by the time it took. The clock may not leap for those who came after
-- the dispatch, so it moves by the larger of the two weight sums, and the tenant keeps its distance to the clock. A
-- lease of an earlier epoch was charged in another unit, to an account that is closed.
local function correct(call, t, epoch, leased_at, cost, weight_sum)
  local q = call.queue
  t.rerated = true
  if q.share == SHARE_COUNT or epoch ~= q.epoch then return end
  local measured = math.max(call.now - leased_at, 1)
  local excess = measured - cost
  local step = excess / math.max(weight_sum, q.weight_sum)
  t.vtime = t.vtime + excess / t.weight - excess / weight_sum + step
  t.delivered = t.delivered + excess
  q.clock = q.clock + step
  t.estimate = t.estimate == 0 and measured or t.estimate + (measured - t.estimate) / 8
  q.estimate = q.estimate == 0 and measured or q.estimate + (measured - q.estimate) / 64
end

-- Seats all touched tenants and writes the slots, so that darts can be thrown (again).
local function seat_all(call)
  local i, fields, gone = 1, {}, {}
  while i <= #call.touched do  -- seating one tenant may touch another
    seat(call, call.touched[i])
    i = i + 1
  end
  for field, name in pairs(call.slots) do
    if name then
      fields[#fields + 1] = field
      fields[#fields + 1] = name
    else
      gone[#gone + 1] = field
    end
  end
  call.slots = {}
  write('HSET', key(call, 'slots'), fields)
  write('HDEL', key(call, 'slots'), gone)
end

-- Writes all that the call changed, each value once, and wakes the servers if they wait for work that there now is.
local function close(call)
  local q, fields = call.queue, {}
  seat_all(call)
  for _, t in ipairs(call.touched) do
    fields[#fields + 1] = t.name
    fields[#fields + 1] = pack_tenant(t)
  end
  write('HSET', key(call, 'tenants'), fields)
  write('RPUSH', key(call, 'wake'), call.woken)
  if q.hungry == 1 and call.readied and q.barred == 0 then
    q.hungry = 0
    redis.call('SPUBLISH', key(call, 'ready'), '1')
  end
  q.now = call.now
  redis.call('SET', key(call, 'queue'), pack_queue(q))
end
