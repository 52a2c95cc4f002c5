-- needs: accounts, calls, reserve
--
-- What a tenant's account is charged: for dispatches or, with `share = time`, for leases.

-- Charges a dispatch, with `share = count`. Returns how far it moved the clock: 0 with `share = time`, or if the tenant
-- does not compete; false for a gift, which is not charged.
function charges.dispatch(call, account)
  local queue = call.queue
  if queue.share == SHARE_TIME then return 0 end
  local books = accounts.books_of(call, account)
  books.delivered, queue.delivered = books.delivered + 1, queue.delivered + 1
  if account.loan == accounts.GIFT then return false end
  local moved = account.standing == COMPETES and 1 / queue.weight_sum or 0
  account.base = account.base + 1 / account.weight
  calls.move_clock(queue, moved)
  return moved
end

-- Takes a dispatch back that moved the clock by so much.
function charges.refund(call, account, moved)
  local queue = call.queue
  if queue.share == SHARE_TIME then return end
  local books = accounts.books_of(call, account)
  books.delivered, queue.delivered = books.delivered - 1, queue.delivered - 1
  if not moved then return end
  account.base = account.base - 1 / account.weight
  calls.move_clock(queue, -moved)
end

-- What lost leases took from the level in this call leaves it no lower than the first of their tenants: it had not
-- moved for leases that ran while their tenant did not compete, and less while more competed than now.
function charges.bound_level(call)
  local queue, lowered = call.queue, call.lowered
  if not lowered then return end
  local lowest = lowered.from
  for account in pairs(lowered.tenants) do lowest = math.min(lowest, accounts.vtime_of(call, account)) end
  queue.level, call.lowered = math.max(queue.level, lowest), false
end

-- Estimates learn from leases that were worked to an end.
local function learn(queue, account, took)
  local estimate, mean, mean_sq = account.estimate, queue.estimate, queue.estimate_sq
  account.estimate = estimate == 0 and took or estimate + (took - estimate) / 8
  queue.estimate = mean == 0 and took or mean + (took - mean) / 64
  queue.estimate_sq = mean_sq == 0 and took * took or mean_sq + (took * took - mean_sq) / 64
end

-- The lease of a tenant took other than the time that has passed since its start, by `unseen`: less if it was lost.
-- Then the level goes back by that: those that wait get the time back, and who comes is to begin with them.
local function correct_clock(call, account, unseen)
  local queue, by = call.queue, unseen / call.queue.weight_sum
  if unseen > 0 then calls.move_clock(queue, by) end
  if unseen < 0 then
    call.lowered = call.lowered or {from = queue.level, tenants = {}}
    call.lowered.tenants[account], queue.level = true, queue.level + by
  end
end

-- Books the end of a lease: the time that it took, up to `until_at`, goes to the account for good. No task takes less
-- than a millisecond, or free ones would be served for ever.
function charges.lease(call, account, began_at, until_at, is_worked)
  local queue, loan, books = call.queue, account.loan, accounts.books_of(call, account)
  local is_gift = loan == accounts.GIFT
  local moves_clock = account.standing == COMPETES and not is_gift
  local start = began_at > queue.epoch_at and began_at or queue.epoch_at
  local took = until_at - start
  if took < 1 then took = 1 end
  local unseen = took - (call.at - start)
  account.leased, account.starts, queue.leased = account.leased - 1, account.starts - start, queue.leased - 1
  if moves_clock then queue.running = queue.running - 1 end
  call.freed = true
  if loan ~= accounts.NO_LOAN then reserve.end_loan(call, account) end
  if queue.share == SHARE_COUNT then return end
  books.delivered, queue.delivered = books.delivered + took, queue.delivered + unseen
  if not is_gift then account.base = account.base + took / account.weight end
  if moves_clock and unseen ~= 0 then correct_clock(call, account, unseen) end
  if is_worked then learn(queue, account, took) end
end
