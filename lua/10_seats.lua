-- Who is served next: the fair pick, and the structures that make it O(1) in the number of tenants.
--
-- Theory. Every tenant has a virtual time: service received / weight (08_accounts.lua). The queue has a clock: the
-- virtual time that a perfectly served tenant would show. A tenant is *eligible* while it has ready tasks, is not
-- blocked, and has fewer leased tasks than its limit allows (6). It *competes* while it is eligible and has more leased
-- tasks than it is guaranteed. Its account keeps which of these it was when it was last looked at (`standing`).
--
-- 1. With `share = time` the clock moves by N / W a ms, where N is how many leases those that compete have, and W the
--    sum of their weights; with `share = count` each dispatch to one that competes moves it by 1 / W. What a tenant is
--    entitled to is booked by it. The *level*, at which tenants begin, moves along, and is never below the virtual time
--    of a tenant with a slot that is served: without that, tenants that come and go hold the clock back while they
--    wait, and those that come to stay begin far behind the others. It goes back by what lost leases did not take
--    (12_charges.lua). Running leases count while they run, so a tenant cannot take more than its share by having tasks
--    that are longer than anybody expects; estimates only guide the choice.
-- 2. The eligible tenant with the lowest virtual time is served, running leases counted as at least what is expected
--    of them. With `share = time`, tenants whose share of the slots has room for one more lease come before all
--    others: how long a task will take is unknown, and with many slots many leases begin before one has ended. The
--    slots that are shared so are those attached, less the leases of tenants that do not compete. Up to FEW tenants are
--    all looked at. Of more, FIRST are drawn by rate, weight / what the tenant's tasks take: a lottery's error grows
--    with the square root of the dispatches, the best of several draws keeps it constant.
--    Those that were not served stay in a pool: for each further pick of the claim one more draw is enough. While the
--    best of the pool is still ahead of the level by more than half a task and the usual spread, others are drawn,
--    REDRAWS at most. And a cursor looks at one more tenant with each pick, so that no tenant with a wrong estimate
--    waits for luck.
-- 3. A tenant that becomes eligible starts at max(own virtual time, level): idling banks no credit, coming back sheds
--    no debt. One that does so at the level goes on the wake list, which is served first, so that a quiet tenant does
--    not wait for luck. A drawn tenant that is behind the level by more than a task of its own goes before it if a
--    coin says so: a stream of newly active tenants cannot starve the backlogged, nor the other way round. A tenant
--    stands on the list at most once (`is_on_wake_list`): one that stops being eligible leaves its entry behind, and is
--    dropped when that is popped, or gets its place back. Where there is a reserve, one that has leases takes a slot
--    at once, unless they are fewer than it is guaranteed.
-- 4. A draw throws a probe. Tenants stand in classes by rate (powers of two), densely numbered from 1; each slot is as
--    long as the top of its class. One random number names class and slot: one throw, whatever the rates or the number
--    of tenants, and it is off by less than a factor of two, which the comparison of virtual times makes good. Leaving
--    moves the class's last tenant into the hole. A tenant whose rate is no longer between two fifths of its class's
--    top and the top changes class whenever it is touched; a probe that meets one touches it.
-- 5. Membership has one rule in one place: `close` seats every tenant that the call touched. No path that makes work
--    ready, or takes it away, can forget to.
-- 6. A tenant that is blocked (paused, closed by the clock, out of tokens), or has as many leased tasks as its limit
--    allows, is not in the draw and costs it nothing; what ends that brings it back (09_limits.lua). When the limit for
--    all has just been lowered, tenants without room may stand in slots: drawing one is a miss, and takes its slot
--    from it. When it has been raised, ticks let
--    in the tenants that were out, page by page.
--
-- The bound that follows: over any time in which it and others wait, a tenant's worker time is no less than its share
-- less three of the longest leases, on few slots (tests/lua/test_shares.py) and on many (test_many_slots.py). It needs
-- claims that say how many slots there are. A newcomer whose tasks are much longer than those that the queue knows may
-- be ahead by a few of its own at first where there are more tenants than slots; it then gets none until that is paid
-- back.

-- The tag in a slot, seen through the changes that this call has not written yet.
local function tag_in(call, class, slot)
  local changed = calls.table_of(call, 'slots')[class]
  return changed and changed[slot] or redis.call('GETRANGE', key(call, 'class:' .. class), 4 * slot - 4, 4 * slot - 1)
end

local function put_in_slot(call, class, slot, tag)
  local slots = calls.table_of(call, 'slots')
  slots[class] = slots[class] or {}
  slots[class][slot] = tag
end

local function take_slot(call, t)
  local classes, _, class = call.queue.classes, math.frexp(accounts.rate_of(call, t))
  t.class, t.slot = class, (classes[class] or 0) + 1
  classes[class] = t.slot
  put_in_slot(call, class, t.slot, t.tag)
end

local function free_slot(call, t)
  local classes, class = call.queue.classes, t.class
  local last = classes[class]
  if t.slot ~= last then
    local moved = accounts.touch(call, accounts.at(call, tag_in(call, class, last)))
    moved.slot = t.slot
    put_in_slot(call, class, t.slot, moved.tag)
  end
  put_in_slot(call, class, last, false)
  classes[class] = last - 1
  t.slot = OUT
end

-- Whether a rate has left the class for which the tenant was given its slot.
function seats.is_outside(rate, top)
  return rate > top or rate < 0.4 * top
end

-- What the tenant was entitled to. While it competes the clock adds to that; its books hold the rest.
function seats.entitled_to(call, t)
  local booked = accounts.books_of(call, t).entitled
  return t.standing == COMPETES and booked + t.weight * call.queue.clock or booked
end

-- The tenant begins to compete (sign = 1) or ends (-1).
local function compete(call, t, sign)
  local q, books = call.queue, accounts.books_of(call, t)
  books.entitled = books.entitled - sign * t.weight * q.clock
  q.weight_sum, q.running = q.weight_sum + sign * t.weight, q.running + sign * accounts.running_of(t)
end

-- Counts the tenant among the eligible and among those that compete, or no longer, as its state says.
local function recount(call, t)
  local previous, standing = t.standing, 0
  if limits.is_eligible(call, t) then
    standing = limits.is_within_guarantee(call, t) and ELIGIBLE or COMPETES
  end
  if standing == previous then return end
  local q = call.queue
  if previous == 0 then q.servable = q.servable + 1 elseif standing == 0 then q.servable = q.servable - 1 end
  if standing == COMPETES then compete(call, t, 1) elseif previous == COMPETES then compete(call, t, -1) end
  t.standing = standing
end
seats.recount = recount

-- A lease of the tenant begins now, or (count = -1) has not begun after all.
function seats.count_lease(call, t, count)
  local q = call.queue
  t.leased, t.starts, q.leased = t.leased + count, t.starts + count * call.at, q.leased + count
  if t.standing == COMPETES and t.loan ~= accounts.GIFT then q.running = q.running + count end
end

local function wake(call, t)
  t.slot = AWAKE
  if t.is_on_wake_list == 1 then return end
  t.is_on_wake_list = 1
  table.insert(calls.table_of(call, 'woken'), t.tag)
end

-- Whether the tenant may stand on the wake list.
function seats.may_wake(call, t)
  return call.queue.reserve == 0 or t.leased == 0 or limits.is_guaranteed(call, t)
end

local function arrive(call, t)
  call.readied = true
  local behind = call.queue.level - accounts.vtime_of(call, t)
  if behind < 0 and not limits.is_guaranteed(call, t) then return take_slot(call, t) end
  t.base = t.base + math.max(behind, 0)
  if seats.may_wake(call, t) then wake(call, t) else take_slot(call, t) end
end

-- Puts a tenant where its state says it belongs. Every touched tenant passes here once, at the end.
local function seat(call, t)
  recount(call, t)
  if t.standing == 0 then
    limits.keep_out(call, t)
    if t.slot > 0 then free_slot(call, t) end
    t.slot = OUT
  elseif t.slot == OUT then
    limits.let_in(call, t)
    arrive(call, t)
  elseif limits.is_guaranteed(call, t) then
    if t.slot > 0 then free_slot(call, t) end
    wake(call, t)
  elseif t.slot == AWAKE then
    if t.is_on_wake_list == 0 then take_slot(call, t) end  -- served from the wake list, and has more
  elseif seats.is_outside(accounts.rate_of(call, t), 2 ^ t.class) then
    free_slot(call, t)
    take_slot(call, t)
  end
end

-- Seats all touched tenants, so that probes can be thrown (again).
function seats.seat_all(call)
  local i = 1
  while i <= #call.touched do  -- seating one tenant may touch another
    seat(call, call.touched[i])
    i = i + 1
  end
end

-- Writes the slots that the call changed. Beyond a class's count its string may hold anything.
function seats.write(call)
  for class, changed in pairs(call.slots or {}) do
    local count, at = call.queue.classes[class], key(call, 'class:' .. class)
    if count == 0 then
      redis.call('DEL', at)
    else
      for slot, tag in pairs(changed) do
        if tag and slot <= count then redis.call('SETRANGE', at, 4 * slot - 4, tag) end
      end
    end
  end
  write('RPUSH', key(call, 'wake'), call.woken or {})
end
