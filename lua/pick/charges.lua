-- needs: accounts, calls, reserve
--
-- What a tenant's account is charged: for dispatches or, with `share = time`, for leases.

local function towards(mean, value, part)
  return mean == 0 and value or mean + (value - mean) / part
end

-- Charges a dispatch, where tasks are what is shared; returns by how much that moved the clock (false: it was a gift).
function charges.dispatch(call, t)
  local q = call.queue
  if q.share == SHARE_TIME then return 0 end
  local books = accounts.books_of(call, t)
  books.delivered, q.delivered = books.delivered + 1, q.delivered + 1
  if t.loan == accounts.GIFT then return false end
  local moved = t.standing == COMPETES and 1 / q.weight_sum or 0
  t.base = t.base + 1 / t.weight
  calls.move_clock(q, moved)
  return moved
end

-- Takes a dispatch back that moved the clock by so much.
function charges.refund(call, t, moved)
  local q = call.queue
  if q.share == SHARE_TIME then return end
  local books = accounts.books_of(call, t)
  books.delivered, q.delivered = books.delivered - 1, q.delivered - 1
  if not moved then return end
  t.base = t.base - 1 / t.weight
  calls.move_clock(q, -moved)
end

-- A lease that was lost did not take all the time by which it moved the level: the level goes back by that. Those that
-- wait get the time back, and who comes is to begin with them.
local function lower_level(call, t, by)
  local q = call.queue
  call.lowered = call.lowered or {from = q.level, tenants = {}}
  call.lowered.tenants[t], q.level = true, q.level - by
end

-- What lost leases took from the level in this call leaves it no lower than the first of their tenants: it had not
-- moved for leases that ran while their tenant did not compete, and less while more competed than now.
function charges.bound_level(call)
  local q, lowered = call.queue, call.lowered
  if not lowered then return end
  local lowest = lowered.from
  for t in pairs(lowered.tenants) do lowest = math.min(lowest, accounts.vtime_of(call, t)) end
  q.level, call.lowered = math.max(q.level, lowest), false
end

-- Estimates learn from leases that were worked to an end.
local function learn(q, t, took)
  t.estimate = towards(t.estimate, took, 8)
  q.estimate, q.estimate_sq = towards(q.estimate, took, 64), towards(q.estimate_sq, took * took, 64)
end

-- The lease of a tenant took other than the time that has passed since its start, by `unseen`: less if it was lost.
local function correct_clock(call, t, unseen)
  local q = call.queue
  if unseen > 0 then calls.move_clock(q, unseen / q.weight_sum) end
  if unseen < 0 then lower_level(call, t, -unseen / q.weight_sum) end
end

-- Books the end of a lease: the time that it took, up to `until_at`, goes to the account for good. No task takes less
-- than a millisecond, or free ones would be served for ever.
function charges.lease(call, t, began_at, until_at, is_worked)
  local q, is_gift, books = call.queue, t.loan == accounts.GIFT, accounts.books_of(call, t)
  local moves_clock = t.standing == COMPETES and not is_gift
  local start = math.max(began_at, q.epoch_at)
  local took = math.max(until_at - start, 1)
  local unseen = took - (call.at - start)
  t.leased, t.starts, q.leased = t.leased - 1, t.starts - start, q.leased - 1
  if moves_clock then q.running = q.running - 1 end
  call.freed = true
  if t.loan ~= accounts.NO_LOAN then reserve.end_loan(call, t) end
  if q.share == SHARE_COUNT then return end
  books.delivered, q.delivered = books.delivered + took, q.delivered + unseen
  if not is_gift then t.base = t.base + took / t.weight end
  if moves_clock then correct_clock(call, t, unseen) end
  if is_worked then learn(q, t, took) end
end
