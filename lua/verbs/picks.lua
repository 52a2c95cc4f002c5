-- needs: accounts, calls, charges, draws, limits, reserve, seats, takes, wake_list
--
-- Picks: which tenants a claim serves, in rounds, and which tasks of theirs it takes. It only reads.

-- OWED_LOOKS: tenants that are not owed, at which a claim of what is owed looks.
-- NAMED: an account's numbers and name. SERVED: the numbers up to `ready`, and all else, from KEPT_AT on, as one text.
local OWED_LOOKS = 16
local NAMED, SERVED, KEPT_AT = ACCOUNT.format:match('^[^c]*c0'), '<IdddIBIc0', 38

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
  if limits.is_within_guarantee(call, account) then table_in(round, 'guaranteed')[round.count] = true end
  limits.note_kept_out(call, account)
  limits.spend(call, account, 1)
  seats.recount(call, account)
  if account.standing ~= 0 and limits.is_guaranteed(call, account) then
    round.woken[#round.woken + 1], account.is_on_wake_list = account, 1  -- again, after the other newly active tenants
  end
end

-- Serves a tenant, or has it repay a loan. A drawn tenant raises the level to its virtual time; one that stands in for
-- it, in a full reserve, does not.
local function serve(call, round, account, is_drawn)
  local queue = call.queue
  if call.touched[account.tag] == nil and accounts.has_groups(call, account) then call.costly = call.costly + 1 end
  accounts.touch(call, account)
  if is_drawn then queue.level = math.max(queue.level, accounts.vtime_of(call, account)) end
  if account.loan == accounts.NO_LOAN or reserve.repay(call, account) then
    if queue.reserve > 0 then reserve.lend(call, account) end
    if is_drawn and draws.has_room(round, account) then round.kept = round.kept - 1 end
    local count = round.count + 1
    round.count, round.tenants[count], round.moves[count] = count, account.tag, charges.dispatch(call, account)
    dispatch(call, round, account)
  end
  if is_drawn and account.standing ~= 0 then
    local time, _, room = round.compare(account.weight, account.base, account.starts, account.estimate,
      account.leased, account.loan, account.ready)
    draws.give_back(round, account.tag, time, room)
  end
end

-- Serves drawn tenants, the next ones first, with the same result as `serve`, without unpacking their accounts: while
-- they have seats and more than one task, they compete, and their details do not matter. The last one that the round
-- knows is served as often as it can be at once.
local function serve_packed(call, round)
  local queue, at, packed, touched, level = call.queue, call.at, call.packed, call.touched, call.queue.level
  local times, of_time, place, wanted, count = round.times, round.of_time, round.next, round.wanted, round.count
  local slots_per_weight, kept = round.slots_per_weight, round.kept
  local time = times[place]
  while time and count < wanted do
    local tag, often = of_time[time], 1
    if call.accounts[tag] then break end
    local account = packed[tag]
    local weight, base, starts, estimate, leased, loan, ready, slot, class, standing, _, is_odd, name =
      struct.unpack(NAMED, account)
    if is_odd == 1 or ready == 1 or standing ~= COMPETES or slot <= 0 then break end
    local own_room = weight * slots_per_weight - leased
    place, of_time[time] = place + 1, round.next_of_same_time[tag]
    time = times[place]
    if own_room >= 1 or wanted - count > kept then
      if not time then often = math.min(wanted - count, ready - 1) end
      if own_room >= 1 then kept = kept - math.min(often, math.floor(own_room)) end
      local vtime = base + (leased * at - starts) / weight
      if vtime > level then level = vtime end
      starts, leased, ready = starts + often * at, leased + often, ready - often
      packed[tag] = struct.pack(SERVED, weight, base, starts, estimate, leased, loan, ready, account:sub(KEPT_AT))
      if touched[tag] == nil then touched[#touched + 1] = tag end
      touched[tag] = leased == 1 and estimate > 0  -- then its rate is what it was
        or seats.class_for(call, class, weight, starts, estimate, leased) == class
      round.names[tag] = name
      for i = count + 1, count + often do round.tenants[i] = tag end
      count = count + often
      local again, _, room = round.compare(weight, base, starts, estimate, leased, loan, ready)
      if room > 0 or not times[wanted] or again < times[wanted] then
        round.next = place
        draws.give_back(round, tag, again, room)
        time = times[place]
      end
    end
  end
  local served = count - round.count
  queue.ready, queue.leased, queue.running = queue.ready - served, queue.leased + served, queue.running + served
  round.next, round.count, round.kept, queue.level = place, count, kept, level
end

-- A round of up to `wanted` picks, with these tenants of the wake list. The picks are in order, as columns: pick i is
-- of the tenant with the tag tenants[i], and with `share = count` its charge moved the clock by moves[i]; guaranteed[i]
-- is true if it is within a guarantee. names[tag] is the name of a tenant that stayed packed.
local function new_round(call, wanted, woken)
  return {wanted = wanted, most = wanted + call.queue.loans, times = {}, next = 1, compare = false,
    slots_per_weight = 0, kept = 0, of_time = false, next_of_same_time = false, is_seen = false,
    woken = woken, next_woken = 1, popped = #woken,
    tenants = {}, names = {}, moves = {}, guaranteed = false, count = 0}
end

-- Makes up to `wanted` picks of tenants of the wake list that are below their guarantees. Looks at OWED_LOOKS others at
-- most; these keep their places.
function picks.owed_round(call, wanted)
  local round, others = new_round(call, wanted, wake_list.read(call, wanted + OWED_LOOKS)), {}
  while round.count < wanted and round.woken[round.next_woken] and call.costly < COSTLY_PER_CALL do
    local woken = round.woken[round.next_woken]
    round.next_woken = round.next_woken + 1
    if limits.is_guaranteed(call, woken) then
      woken.is_on_wake_list = 0
      serve(call, round, woken, false)
    else
      others[#others + 1] = woken.tag
    end
  end
  wake_list.keep(call, round)
  for i = #others, 1, -1 do table.insert(call.wake.unserved, 1, others[i]) end
  return round
end

-- Makes up to `wanted` picks.
-- Each tenant that is taken is served or repays a loan, so none behind the first `most` times is taken. Once one is
-- left out because the remaining picks are kept for others, only tenants with room are taken. Also returns whether it
-- found nothing to do, and whether that is because the free slots are kept for tenants that have nothing running.
function picks.round(call, wanted)
  local queue, woken, has_popped = call.queue, wake_list.read(call, wanted)
  local round = new_round(call, wanted, woken)
  local is_full = queue.reserve > 0 and reserve.is_full(call)
  local is_plain = queue.share == SHARE_TIME and queue.limited + queue.reserve + queue.loans == 0
  if queue.servable > 0 and not is_full then draws.look(call, round) end
  while round.count < wanted and queue.servable > 0 and call.costly < COSTLY_PER_CALL do
    if is_plain and not woken[round.next_woken] then serve_packed(call, round) end
    if round.count == wanted then break end
    local tag, is_drawn = pick(call, round)
    if not tag then break end
    serve(call, round, accounts.at(call, tag), is_drawn)
  end
  if #woken > 0 then wake_list.keep(call, round) end
  local is_empty = round.count == 0 and not has_popped
  return round, is_empty, is_empty and queue.reserve > 0 and reserve.is_full(call) and not next(call.passed_over)
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

-- Moves pick i to an earlier place of the round.
local function move(round, i, place)
  round.tenants[place], round.moves[place] = round.tenants[i], round.moves[i]
  if round.guaranteed then round.guaranteed[place] = round.guaranteed[i] end
end

-- Moves pick i to its tenant's next task: the one that it was for is not ready any more. The pick is pending.
function picks.skip(call, round, i)
  local account = accounts.at(call, round.tenants[i])
  account.ready, call.queue.ready = account.ready - 1, call.queue.ready - 1
  if account.ready == 0 then seats.recount(call, account) end
  round.pending = round.pending + 1
  move(round, i, round.pending)
end

-- A tenant that was picked had no task to give: it had its turn, and is passed over (verbs/claim.lua).
function picks.pass_over(call, account)
  local turn = call.queue.level + accounts.expected_of(call, account) / account.weight
  account.base = account.base + math.max(0, turn - accounts.vtime_of(call, account))
  call.passed_over[account] = true
end

-- Returns the ids of the picks' tasks. A pick that finds no task is taken back: an earlier call failed half way.
function picks.take(call, round)
  local tenants, names, opened = round.tenants, round.names, call.accounts
  local counts, ids_of, ids, n = {}, {}, {}, 0  -- by tenant: its picks, and the ids of its tasks once they are read
  for i = 1, round.count do
    local tag = tenants[i]
    counts[tag] = (counts[tag] or 0) + 1
  end
  for i = 1, round.count do
    local tag = tenants[i]
    local own, given = ids_of[tag], counts[tag]
    if not own then
      local account = opened[tag]
      own = account and takes.ids(call, account, given) or takes.loose(call, names[tag], given)
      if given > 1 then ids_of[tag] = own end
      given = 0
    end
    given = given + 1
    counts[tag] = given
    local id = own[given]
    if id then
      n = n + 1
      ids[n] = id
      if n < i then move(round, i, n) end
    else
      picks.unpick(call, round, i, 0)
    end
  end
  round.count = n
  return ids
end
