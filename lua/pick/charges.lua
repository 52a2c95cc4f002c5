-- needs: accounts, calls, remembered, reserve, seats
--
-- Charging a tenant's account: for dispatches or, with `share = time`, for leases.

local NO_LOAN, GIFT = accounts.NO_LOAN, accounts.GIFT
-- WITH_BOOKS: an account and its books. CHANGED: the same as the end of a lease writes it. There what stays as it is,
-- from KEPT_AT on, is one text. It ends BOOKED_SIZE bytes, and what later versions keep, before `behind`.
local WITH_BOOKS, CHANGED, KEPT_AT, BOOKED_SIZE = ACCOUNT.format .. BOOKS.format:sub(2), '<IdddIc0dddIdBc0', 33, 38

-- Charges a dispatch, with `share = count`. Returns how far it moved the clock: 0 with `share = time`, or if the tenant
-- does not compete; false for a gift, which is not charged.
function charges.dispatch(call, account)
  local queue = call.queue
  if queue.share == SHARE_TIME then return 0 end
  local books = accounts.books_of(call, account)
  books.delivered, queue.delivered = books.delivered + 1, queue.delivered + 1
  if account.loan == GIFT then return false end
  local moved = account.standing == COMPETES and 1 / queue.weight_sum or 0
  account.base = account.base + 1 / account.weight
  calls.move_clock(queue, moved)
  return moved
end

-- Takes back a dispatch that moved the clock by `moved`.
function charges.refund(call, account, moved)
  local queue = call.queue
  if queue.share == SHARE_TIME then return end
  local books = accounts.books_of(call, account)
  books.delivered, queue.delivered = books.delivered - 1, queue.delivered - 1
  if not moved then return end
  account.base = account.base - 1 / account.weight
  calls.move_clock(queue, -moved)
end

-- Lost leases lower the level, but not below the lowest virtual time of their tenants. The level had not moved for
-- leases that ran while their tenant did not compete, and had moved less while more tenants competed than now.
function charges.bound_level(call)
  local queue, lowered = call.queue, call.lowered
  local lowest = lowered.from
  for tag in pairs(lowered.tenants) do lowest = math.min(lowest, accounts.vtime_of(call, accounts.at(call, tag))) end
  queue.level, call.lowered = math.max(queue.level, lowest), false
end

-- `unseen` is the time that a lease took, less the time since its start: negative if it was lost. Then the level goes
-- back by it: waiting tenants get the time back, and newcomers begin at the same level.
local function correct_clock(call, tag, unseen, moves_clock)
  local queue, by = call.queue, unseen / call.queue.weight_sum
  queue.delivered = queue.delivered + unseen
  if not moves_clock then return end
  if unseen > 0 then calls.move_clock(queue, by) end
  if unseen < 0 then
    call.lowered = call.lowered or {from = queue.level, tenants = {}}
    call.lowered.tenants[tag], queue.level = true, queue.level + by
  end
end

-- Copies the changes by the end of a lease into an open account.
local function put(call, account, base, starts, estimate, delivered, done, bytes, more)
  local books = accounts.books_of(call, account)
  account.base, account.starts, account.estimate, account.leased = base, starts, estimate, account.leased - 1
  books.delivered, books.done, books.bytes, books.more = delivered, done, bytes, more
  if account.loan ~= NO_LOAN then reserve.end_loan(call, account) end
end

-- Books the end of a lease to the tenant of a tag. It took the time up to `until_at` (nil: now), and no less than a
-- millisecond, or free tasks would be served for ever. Estimates learn from it if it was worked to an end
-- (`is_worked`). `id`: of its task, if that ends with it (else false): it counted `bytes_gone`, and is remembered. A
-- packed account stays packed, unless it has a loan.
function charges.lease(call, tag, began_at, until_at, is_worked, is_done, id, bytes_gone)
  local queue, account = call.queue, call.accounts[tag]
  local packed = account and accounts.pack(call, account) or call.packed[tag]
  local weight, base, starts, estimate, leased, loan, ready, slot, class, standing, is_on_wake_list, is_odd, _, _,
    _, _, delivered, done, bytes, events, _, later, behind = struct.unpack(WITH_BOOKS, packed)
  if not account and loan ~= NO_LOAN then
    accounts.at(call, tag)
    return charges.lease(call, tag, began_at, until_at, is_worked, is_done, id, bytes_gone)
  end
  local touched, kept_to = call.touched, behind - BOOKED_SIZE - #later
  if touched[tag] == nil then touched[tag], touched[#touched + 1] = false, tag end
  local start, moves_clock = queue.epoch_at, standing == COMPETES and loan ~= GIFT
  if began_at > start then start = began_at end
  leased, starts, queue.leased, call.freed = leased - 1, starts - start, queue.leased - 1, true
  if moves_clock then queue.running = queue.running - 1 end
  if queue.share == SHARE_TIME then
    local passed = call.at - start
    local took = until_at and until_at - start or passed
    if took < 1 then took = 1 end
    if took ~= passed then correct_clock(call, tag, took - passed, moves_clock) end
    delivered = delivered + took
    if loan ~= GIFT then base = base + took / weight end
    if is_worked then
      local mean, mean_sq, square = queue.estimate, queue.estimate_sq, took * took
      if mean == 0 then mean, mean_sq = took, square end
      queue.estimate, queue.estimate_sq = mean + (took - mean) / 64, mean_sq + (square - mean_sq) / 64
      estimate = estimate == 0 and took or estimate + (took - estimate) / 8
    end
  end
  if is_done then done = done + 1 end
  if id then
    bytes = bytes - bytes_gone
    later = remembered.add(call, later, id)
  end
  if account then return put(call, account, base, starts, estimate, delivered, done, bytes, later) end
  call.packed[tag] = struct.pack(CHANGED, weight, base, starts, estimate, leased,
    packed:sub(KEPT_AT, kept_to), delivered, done, bytes, events, call.at, #later, later)
  touched[tag] = queue.limited + is_odd == 0 and (
    slot > 0 and seats.class_for(call, class, weight, starts, estimate, leased) == class
    or slot == AWAKE and is_on_wake_list == 1 or slot == OUT and ready == 0)
end
