-- needs: accounts, limits
--
-- The reserve: slots that are kept for tenants that have nothing running.
--
-- Theory. Of S slots attached to the queue K = ceil(S * reserve / 100) are kept, but never the last one, so that a
-- tenant which comes while long tasks fill the others need not wait for one of them to end. A claim sends S; there
-- are at least as many as there are leases and as the claim asks for. Serving only tenants with nothing running
-- beyond S - K leases would keep them, but break the weights: while enough of them wait, each would get one slot and
-- no more, regardless of its weight. So leases that begin in kept slots are *loans*: they do not count among the S - K
-- *ordinary* ones, and are repaid when the fair pick has come to their tenants. The queue is *full* while S - K
-- leases or more are ordinary.
--
-- 1. While it is not full, the picked tenant is served. If it has a loan, its lease becomes an ordinary one instead.
-- 2. While it is full, only tenants with nothing running are picked, and those below their guarantee: the wake list
--    first, then the one with the lowest virtual time, by the same toss (rule 3 of pick/README.md). The level stays. A
--    lease that begins so is a loan, but for a guaranteed one, which is ordinary: guarantees go before the reserve.
-- 3. A tenant has one loan at most, and while it has it no other lease. It ends with the lease.
-- 4. If a tenant's virtual time is ahead of the level by more than a task, its loan is a *gift*: its virtual time
--    stands still and it does not move the clock, though its weight stays in the sum. Otherwise tenants that get kept
--    slots again and again would drive the level away from a tenant with more weight than the ordinary slots can serve,
--    and owe so much that they get nothing once the reserve ends.
-- 5. The other tenants keep their slots, their weight and their clock.
--
-- The sorted set `idle` has the tenants that have seats and have nothing running, by virtual time, which does not
-- change with time for them. It exists while there is a reserve; ticks fill it when one is set (`limits.sweep`).

local NO_LOAN, LOAN, GIFT = accounts.NO_LOAN, accounts.LOAN, accounts.GIFT

-- How many slots there are, and how many leases may be ordinary.
local function slots_of(call)
  local queue = call.queue
  local slots = math.max(queue.slots, call.proven_slots)
  return slots, math.max(1, slots - math.ceil(slots * queue.reserve / 100))
end

-- True if only kept slots are left.
function reserve.is_full(call)
  local queue, _, ordinary = call.queue, slots_of(call)
  return queue.leased - queue.loans >= ordinary
end

-- How many slots are kept, if only those are left; else 0.
function reserve.kept(call)
  local queue = call.queue
  if queue.reserve == 0 or not reserve.is_full(call) then return 0 end
  local slots, ordinary = slots_of(call)
  return math.max(0, slots - ordinary)
end

-- True if tenants that have leases may be served, now that a lease has ended.
function reserve.has_room(call)
  local queue = call.queue
  return queue.reserve > 0 and queue.servable > 0 and not reserve.is_full(call)
end

local function is_idle(account)
  return account.slot > 0 and account.leased == 0
end

local function may_borrow(call, account)
  return is_idle(account) and not call.passed_over[account]
end

-- The idle tenants with seats, the next one to serve last: as many as the round may need. Those that this call has
-- touched are not written yet, and may still stand in the set.
local function list_idle(call, wanted)
  local line, tags = {}, redis.call('ZRANGE', call.prefix .. 'idle', 0, wanted + #call.touched - 1)
  accounts.read(call, tags)
  for _, tag in ipairs(tags) do
    local account = accounts.at(call, tag)
    if account and may_borrow(call, account) and call.touched[tag] == nil then
      line[#line + 1] = account
    elseif account then
      accounts.touch(call, account)
    end
  end
  for _, tag in ipairs(call.touched) do
    local account = accounts.at(call, tag)
    if may_borrow(call, account) then line[#line + 1] = account end
  end
  table.sort(line, function(one, other)
    if one.base ~= other.base then return one.base > other.base end
    return struct.unpack('<I', one.tag) > struct.unpack('<I', other.tag)
  end)
  return line
end

-- The tag of the first of them that this round has not served; nil if there is none.
function reserve.first_idle(call, round)
  local idle = round.idle or list_idle(call, round.wanted)
  while idle[1] and idle[#idle].leased > 0 do idle[#idle] = nil end
  round.idle = idle
  return idle[1] and idle[#idle].tag
end

-- A lease of the tenant is to begin: in a kept slot it is a loan.
function reserve.lend(call, account)
  if not reserve.is_full(call) or limits.is_guaranteed(call, account) then return end
  local queue = call.queue
  local is_ahead = accounts.vtime_of(call, account) > queue.level + accounts.expected_of(call, account) / account.weight
  account.loan, queue.loans = is_ahead and GIFT or LOAN, queue.loans + 1
end

-- The loan ends with its lease.
function reserve.end_loan(call, account)
  account.loan, call.queue.loans = NO_LOAN, call.queue.loans - 1
end

-- Repays a loan when the fair pick has come to its tenant: its lease is an ordinary one from now on. Time that was a
-- gift stays one. Returns whether the tenant gets another lease all the same, because of its guarantee.
function reserve.repay(call, account)
  local queue, vtime, running = call.queue, accounts.vtime_of(call, account), accounts.running_of(account)
  reserve.end_loan(call, account)
  account.base = account.base + vtime - accounts.vtime_of(call, account)
  if account.standing == COMPETES then queue.running = queue.running + accounts.running_of(account) - running end
  return limits.is_guaranteed(call, account)
end

-- Writes which of the tenants that the call touched have seats and nothing running.
function reserve.write(call)
  local idle, others = {}, {}
  for _, tag in ipairs(call.touched) do
    local account = accounts.at(call, tag)
    if is_idle(account) then
      idle[#idle + 1], idle[#idle + 2] = text(account.base), tag
    else
      others[#others + 1] = tag
    end
  end
  write('ZADD', call.prefix .. 'idle', idle)
  write('ZREM', call.prefix .. 'idle', others)
end

-- The reserve or the unit of virtual time has changed: ticks fill the set anew, and there may be room.
function reserve.renew(call)
  local queue = call.queue
  redis.call('UNLINK', call.prefix .. 'idle')
  if queue.reserve > 0 then queue.sweeping = math.max(queue.sweeping, SWEEP_WANTED) end
  call.readied = queue.servable > 0
end
