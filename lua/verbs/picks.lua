-- needs: accounts, calls, charges, draws, limits, reserve, seats, takes
--
-- Picks: which tenants a claim serves, in rounds, and which tasks of theirs it takes. Nothing is written here.

-- NAMED: an account's numbers and name. SERVED: the numbers up to `ready`, and all else, from KEPT_AT on, as one text.
local NAMED, SERVED, KEPT_AT = ACCOUNT.format:match('^[^c]*c0'), '<IdddIBIc0', 38

local function move_tags(from, to, count)
  while count > #to and #from > 0 do to[#to + 1] = table.remove(from, 1) end
end

-- The first tags of the wake list as earlier rounds have left it: those that they did not serve, then those not yet
-- read, then those whose turn comes again.
local function take_tags(call, wanted)
  local wake, tags = call.wake, {}
  move_tags(wake.unserved, tags, wanted)
  if #tags < wanted then
    local entries = redis.call('LRANGE', key(call, 'wake'), wake.read, wake.read + wanted - #tags - 1)
    wake.read = wake.read + #entries
    move_tags(entries, tags, wanted)
  end
  move_tags(wake.again, tags, wanted)
  return tags
end

-- The tenants at the head of the wake list; entries that hold no more (rule 3 of pick/README.md) are dropped. Also
-- tells whether any entry was used or dropped: those of tenants that are passed over stay.
local function read_woken(call, wanted)
  local tags, woken, passed = take_tags(call, wanted), {}, 0
  if #tags == 0 then return woken, false end
  accounts.read(call, tags)
  for _, tag in ipairs(tags) do
    local account = accounts.at(call, tag)
    if account and call.passed_over[account] then
      table.insert(call.wake.again, tag)
      passed = passed + 1
    elseif account and account.slot == AWAKE and limits.is_eligible(call, account)
        and seats.may_wake(call, account) then
      woken[#woken + 1] = account
    elseif account then
      accounts.touch(call, account).is_on_wake_list = 0
    end
  end
  return woken, #tags > passed
end

-- Tenants that were not served keep their place in the wake list; those whose turn comes again go behind all others.
local function keep_woken(call, round)
  local wake, next_woken, popped = call.wake, round.next_woken, round.popped
  for i = popped, next_woken, -1 do table.insert(wake.unserved, 1, round.woken[i].tag) end
  for i = math.max(next_woken, popped + 1), #round.woken do wake.again[#wake.again + 1] = round.woken[i].tag end
end

-- Writes what the claim has left of the wake list.
function picks.write_woken(call)
  local wake, list, unserved = call.wake, key(call, 'wake'), {}
  if wake.read == 0 then return end
  redis.call('LTRIM', list, wake.read, -1)
  for i = #wake.unserved, 1, -1 do unserved[#unserved + 1] = wake.unserved[i] end
  write('LPUSH', list, unserved)
  write('RPUSH', list, wake.again)
end

-- True if the drawn tenant goes before the first of the wake list: it is behind the level, and wins the toss (rule 3 of
-- pick/README.md).
local function drawn_wins(call, woken, drawn)
  local expected = accounts.expected_of(call, drawn) / drawn.weight
  if accounts.vtime_of(call, drawn) + expected >= call.queue.level then return false end
  return calls.random(call) < (limits.is_guaranteed(call, woken) and 1 / 8 or 1 / 2)
end

-- The next tenant to serve: the first of the wake list, unless the drawn one wins. When only kept slots are left
-- (pick/reserve.lua), a tenant that has nothing running stands in for the drawn one. Returns its tag, nil if there is
-- none, and whether it is drawn.
local function pick(call, round)
  local woken, is_full, best = round.woken[round.next_woken], call.queue.reserve > 0 and reserve.is_full(call), nil
  if is_full then best = reserve.first_idle(call, round) else best = draws.take(call, round) end
  if not woken or best and drawn_wins(call, woken, accounts.at(call, best)) then return best, not is_full end
  if best and not is_full then draws.untake(round, best) end
  round.next_woken, woken.is_on_wake_list = round.next_woken + 1, 0
  return woken.tag, false
end

-- Counts a dispatch of a tenant, and sees whether it can have another one.
local function dispatch(call, round, account)
  local queue, ready = call.queue, account.ready - 1
  account.ready, queue.ready = ready, queue.ready - 1
  seats.count_lease(call, account, 1)
  if limits.is_plain(call, account) then
    if ready == 0 then seats.recount(call, account) end
    return
  end
  limits.note_kept_out(call, account)
  limits.spend(call, account, 1)
  seats.recount(call, account)
  if account.standing ~= 0 and limits.is_guaranteed(call, account) then
    round.woken[#round.woken + 1], account.is_on_wake_list = account, 1  -- again, after the other newly active tenants
  end
end

-- The level is never below the virtual time of a served tenant that has a slot.
local function raise_level(queue, vtime)
  if vtime > queue.level then queue.level = vtime end
end

-- Serves a tenant. Returns how far that moved the clock (`charges.dispatch`), nil if it only repaid a loan.
local function serve(call, round, account, is_drawn)
  local queue, moved = call.queue, nil
  if not call.touched[account.tag] and accounts.has_groups(call, account) then call.costly = call.costly + 1 end
  accounts.touch(call, account)
  if is_drawn then raise_level(queue, accounts.vtime_of(call, account)) end
  if account.loan == accounts.NO_LOAN or reserve.repay(call, account) then
    if queue.reserve > 0 then reserve.lend(call, account) end
    moved = charges.dispatch(call, account)
    dispatch(call, round, account)
  end
  if account.slot > 0 and account.standing ~= 0 then
    draws.give_back(round, account.tag, account.weight, account.base, account.starts, account.estimate, account.leased)
  end
  return moved
end

-- Serves a drawn tenant whose account stays packed: it has a slot and more than one task, it competes, and its details
-- do not matter. (No tenant has woken, or `drawn_wins` would have opened it.) If the round knows no other, it is served
-- up to `wanted` times at once. Returns how often; 0, and changes nothing, if it must be opened.
local function serve_packed(call, round, tag, wanted)
  local packed, queue, touched, at = call.packed[tag], call.queue, call.touched, call.at
  local weight, base, starts, estimate, leased, loan, ready, slot, class, standing, _, is_odd, name =
    struct.unpack(NAMED, packed)
  if is_odd == 1 or ready == 1 or standing ~= COMPETES or slot <= 0 then return 0 end
  local count = 1
  if not (round.times[round.next] or round.back[round.next_back]) then
    count = math.min(wanted, ready - 1)
  end
  raise_level(queue, base + (leased * at - starts) / weight)
  starts, leased, ready = starts + count * at, leased + count, ready - count
  queue.ready, queue.leased, queue.running = queue.ready - count, queue.leased + count, queue.running + count
  call.packed[tag] = struct.pack(SERVED, weight, base, starts, estimate, leased, loan, ready, packed:sub(KEPT_AT))
  if not touched[tag] then touched[tag], touched[#touched + 1] = true, tag end
  call.stays[tag] = leased == 1 and estimate > 0  -- then its rate is what it was
    or seats.class_for(call, class, weight, starts, estimate, leased) == class
  round.names[tag] = name
  draws.give_back(round, tag, weight, base, starts, estimate, leased)
  return count
end

-- Makes up to `wanted` picks. Returns them in order, as columns: pick i is of the tenant with the tag tenants[i], and
-- its charge moved the clock by moves[i]. names[tag] is the name of a tenant that stayed packed. `only_reserve_left`:
-- nothing was picked, since the free slots are kept for tenants that have nothing running.
function picks.round(call, wanted)
  local queue, opened, woken, has_popped = call.queue, call.accounts, read_woken(call, wanted)
  local round = draws.begin(call, wanted)
  local tenants, moves, count, has_reserve = {}, {}, 0, queue.reserve > 0
  local is_plain = queue.share == SHARE_TIME and queue.limited + queue.reserve + queue.loans == 0
  round.woken, round.next_woken, round.popped, round.names = woken, 1, #woken, {}
  while count < wanted and queue.servable > 0 and call.costly < COSTLY_PER_CALL do
    local tag, is_drawn = pick(call, round)
    if not tag then break end
    local served, moved = is_plain and not opened[tag] and serve_packed(call, round, tag, wanted - count) or 0, 0
    if served == 0 then
      moved = serve(call, round, accounts.at(call, tag), is_drawn)
      served = moved == nil and 0 or 1
    end
    for i = count + 1, count + served do tenants[i], moves[i] = tag, moved end
    count = count + served
  end
  keep_woken(call, round)
  local is_empty = count == 0 and not has_popped
  local only_reserve_left = is_empty and has_reserve and reserve.is_full(call) and not next(call.passed_over)
  return {tenants = tenants, names = round.names, moves = moves, count = count, is_empty = is_empty,
    only_reserve_left = only_reserve_left}
end

-- Takes back pick i. `ready_again`: 1 if its task is still ready, 0 if it is not.
function picks.unpick(call, round, i, ready_again)
  local account = accounts.at(call, round.tenants[i])
  charges.refund(call, account, round.moves[i])
  seats.count_lease(call, account, -1)
  if account.loan ~= accounts.NO_LOAN then reserve.end_loan(call, account) end
  account.ready, call.queue.ready = account.ready + ready_again, call.queue.ready + ready_again
  limits.spend(call, account, -1)
  seats.recount(call, account)
end

-- The pick of a tenant goes to its next task: the one that it was for is ready no more.
function picks.skip(call, account)
  account.ready, call.queue.ready = account.ready - 1, call.queue.ready - 1
  if account.ready == 0 then seats.recount(call, account) end
end

-- A tenant that was picked had no task to give: it had its turn, and is passed over (verbs/claim.lua).
function picks.pass_over(call, account)
  local turn = call.queue.level + accounts.expected_of(call, account) / account.weight
  account.base = account.base + math.max(0, turn - accounts.vtime_of(call, account))
  call.passed_over[account] = true
end

-- Gives the picks their tasks' ids. A pick that finds none is taken back: a call failed half way.
function picks.take(call, round)
  local tenants, names, moves, opened = round.tenants, round.names, round.moves, call.accounts
  local wanted, ids_of, ids, n = {}, {}, {}, 0
  for i = 1, round.count do
    local tag = tenants[i]
    wanted[tag] = (wanted[tag] or 0) + 1
  end
  for i = 1, round.count do
    local tag = tenants[i]
    local own, given = ids_of[tag], wanted[tag]
    if not own then
      local account = opened[tag]
      own = account and takes.ids(call, account, given) or takes.loose(call, names[tag], given)
      ids_of[tag], given = own, 0
    end
    local id = own[given + 1]
    wanted[tag] = given + 1  -- from now on: how many were given
    if id then
      n = n + 1
      ids[n], tenants[n], moves[n] = id, tag, moves[i]
    else
      picks.unpick(call, round, i, 0)
    end
  end
  round.ids, round.count = ids, n
end
