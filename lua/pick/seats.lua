-- needs: accounts, calls, limits
--
-- Seats: the places of tenants in the structures of the fair pick (pick/README.md).

-- The tag in a seat, seen through the changes that this call has not written yet.
local function tag_in(call, class, slot)
  local changed = table_in(call, 'moved_tags')[class]
  return changed and changed[slot]
    or redis.call('GETRANGE', call.prefix .. 'class:' .. class, 4 * slot - 4, 4 * slot - 1)
end

local function put_in_slot(call, class, slot, tag)
  table_in(table_in(call, 'moved_tags'), class)[slot] = tag
end

-- The class for a tenant by its rate, weight / the duration of its tasks, running ones included. The tenant stays in
-- `class` (-math.huge: it has none) until its rate has left that class (rule 4 of pick/README.md).
function seats.class_for(call, class, weight, starts, estimate, leased)
  local rate = weight
  if call.queue.share == SHARE_TIME then
    local ms = estimate
    if ms == 0 then ms = call.mean end
    if leased > 0 then
      local age = leased * call.at - starts
      if age > ms * leased then ms = age / leased end
    end
    if ms > 1 then rate = weight / ms end
  end
  local top = 2 ^ class
  if rate <= top and rate >= 0.4 * top then return class end
  local _, of_rate = math.frexp(rate)
  return of_rate
end

local function take_slot(call, account)
  local classes, class = calls.classes_of(call), seats.class_for(call, -math.huge, account.weight, account.starts,
    account.estimate, account.leased)
  account.class, account.slot = class, (classes[class] or 0) + 1
  classes[class] = account.slot
  put_in_slot(call, class, account.slot, account.tag)
end

local function free_slot(call, account)
  local classes, class = calls.classes_of(call), account.class
  local last = classes[class]
  if account.slot ~= last then
    local moved = accounts.touch(call, accounts.at(call, tag_in(call, class, last)))
    moved.slot = account.slot
    put_in_slot(call, class, account.slot, moved.tag)
  end
  put_in_slot(call, class, last, false)
  classes[class] = last - 1
end

-- The tenant's entitlement. While it competes the clock adds to it; its books hold the rest.
function seats.entitled_to(call, account)
  local booked = accounts.books_of(call, account).entitled
  return account.standing == COMPETES and booked + account.weight * call.queue.clock or booked
end

-- The tenant begins to compete (sign = 1) or ends (-1).
local function count_competing(call, account, sign)
  local queue, books, weight = call.queue, accounts.books_of(call, account), sign * account.weight
  books.entitled, queue.weight_sum = books.entitled - weight * queue.clock, queue.weight_sum + weight
  queue.running = queue.running + sign * accounts.running_of(account)
end

-- Counts the tenant among the eligible and among those that compete, or no longer, as its state says.
function seats.recount(call, account)
  local previous, standing = account.standing, limits.standing_of(call, account)
  if standing == previous then return end
  local queue = call.queue
  if previous == 0 then
    queue.servable = queue.servable + 1
  elseif standing == 0 then
    queue.servable = queue.servable - 1
  end
  if standing == COMPETES then
    count_competing(call, account, 1)
  elseif previous == COMPETES then
    count_competing(call, account, -1)
  end
  account.standing = standing
end

-- A lease of the tenant begins now, or (count = -1) has not begun after all.
function seats.count_lease(call, account, count)
  local queue = call.queue
  account.leased = account.leased + count
  account.starts = account.starts + count * call.at
  queue.leased = queue.leased + count
  if account.standing == COMPETES and account.loan ~= accounts.GIFT then queue.running = queue.running + count end
end

local function wake(call, account)
  account.slot = AWAKE
  if account.is_on_wake_list == 1 then return end
  account.is_on_wake_list = 1
  table.insert(table_in(call, 'to_wake'), account.tag)
end

function seats.may_wake(call, account)
  return call.queue.reserve == 0 or account.leased == 0 or limits.is_guaranteed(call, account)
end

local function arrive(call, account)
  call.readied = true
  local behind = call.queue.level - accounts.vtime_of(call, account)
  if behind < 0 and not limits.is_guaranteed(call, account) then return take_slot(call, account) end
  account.base = account.base + math.max(behind, 0)
  if seats.may_wake(call, account) then wake(call, account) else take_slot(call, account) end
end

-- Puts a tenant where its state says it belongs. Every touched tenant passes here once, at the end.
local function seat(call, account)
  seats.recount(call, account)
  if account.standing == 0 then
    limits.keep_out(call, account)
    if account.slot > 0 then free_slot(call, account) end
    account.slot = OUT
  elseif account.slot == OUT then
    local details = accounts.odd_details(call, account)
    if details and details.cause ~= 0 then details.let_in_at = call.now end
    arrive(call, account)
  elseif limits.is_guaranteed(call, account) then
    if account.slot > 0 then free_slot(call, account) end
    wake(call, account)
  elseif account.slot == AWAKE then
    if account.is_on_wake_list == 0 then take_slot(call, account) end  -- served from the wake list, and has more
  elseif seats.class_for(call, account.class, account.weight, account.starts, account.estimate, account.leased)
      ~= account.class then
    free_slot(call, account)
    take_slot(call, account)
  end
end

-- Seats all touched tenants, but those that are known to stay where they are.
function seats.seat_all(call)
  local touched = call.touched
  for i = 1, math.huge do  -- seating one tenant may touch another
    local tag = touched[i]
    if not tag then break end
    if not touched[tag] then seat(call, accounts.at(call, tag)) end
  end
end

-- Writes the seats that the call changed. Beyond a class's count its string may hold anything.
function seats.write(call)
  for class, changed in pairs(call.moved_tags) do
    local count, at = call.classes[class], call.prefix .. 'class:' .. class
    if count == 0 then
      redis.call('DEL', at)
    else
      for slot, tag in pairs(changed) do
        if tag and slot <= count then redis.call('SETRANGE', at, 4 * slot - 4, tag) end
      end
    end
  end
end
