-- needs: accounts, calls, limits
--
-- Seats: where tenants stand in the structures of the fair pick (pick/README.md), and who stands there.

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

-- True if a rate has left the class of that top, in which the tenant has its slot.
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
