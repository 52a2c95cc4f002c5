-- needs: accounts, calls, limits, seats
--
-- Choosing among the tenants that have slots: rules 2 and 4 of pick/README.md. Slots stay as they are while a round
-- chooses.

local FEW = 16     -- so many tenants are all looked at
local FIRST = 3    -- probes for the first pick of a round; one for each that follows
local POOL = 8     -- so many of those that were looked at, the best, are kept for the next picks of the round
local PROBES = 8   -- probes thrown for one draw before it is given up
local REDRAWS = 6  -- further draws while the best one is ahead of the clock
local WHOLE = 2048  -- classes of up to so many tenants are read whole

-- A tenant that has a slot; nil if nothing of it is left, the claim passes it over, or it cannot be served any more:
-- then it loses its slot when the round is over. One that the call has not touched can be, unless limits that all have
-- are lower now.
local function account_of(call, round, tag)
  local account = accounts.at(call, tag)
  if not account then return nil end  -- its record is gone; `repair` takes it out of its slot
  if (round.is_limited or call.is_touched[account])
      and (call.passed_over[account] or not limits.is_eligible(call, account)) then
    accounts.touch(call, account)
    return nil
  end
  return account
end

-- The slots as a line that probes are thrown at: one span per class that has tenants, in the order of the classes.
function draws.read_line(call)
  local line = {length = 0, tenants = 0}
  for class, count in pairs(call.queue.classes) do
    if count > 0 then
      local top = 2 ^ class
      line[#line + 1] = {class = class, at = key(call, 'class:' .. class), top = top, count = count,
        length = count * top, tags = false, some = false, changed = call.moved_tags[class]}
      line.length, line.tenants = line.length + count * top, line.tenants + count
    end
  end
  table.sort(line, function(one, other) return one.class < other.class end)
  return line
end

-- The tag in a slot of a span, seen through the changes that this call has not written yet.
local function tag_in(span, slot)
  local changed, tags, some = span.changed, span.tags, span.some
  if changed and changed[slot] then return changed[slot] end
  if some and slot > some.before and slot <= some.last then
    return some.tags:sub(4 * (slot - some.before) - 3, 4 * (slot - some.before))
  end
  if not tags then
    if span.count > WHOLE then return redis.call('GETRANGE', span.at, 4 * slot - 4, 4 * slot - 1) end
    tags = redis.call('GET', span.at) or ''
    span.tags = tags
  end
  return tags:sub(4 * slot - 3, 4 * slot)
end

-- Adds the tags of `count` slots from a place of the line on; after the last one comes the first.
function draws.tags_from(line, place, count, tags)
  local n, first, left = #tags, place, count
  while left > 0 do
    for _, span in ipairs(line) do
      local last = math.min(span.count, first + left)
      if span.count > WHOLE and last > first then
        span.some = {before = first, last = last, tags = redis.call('GETRANGE', span.at, 4 * first, 4 * last - 1)}
      end
      for slot = first + 1, last do
        n, left = n + 1, left - 1
        tags[n] = tag_in(span, slot)
      end
      first = math.max(first - span.count, 0)
    end
  end
  return tags
end

-- Throws probes: the tags in the slots that they fell into, and the tops of the classes.
local function draw_probes(call, line, wanted)
  local tags, tops = {}, {}
  for i = 1, wanted do
    local point, nth = calls.random(call) * line.length, 1
    local span = line[1]
    while point >= span.length and nth < #line do
      point, nth = point - span.length, nth + 1
      span = line[nth]
    end
    tags[i], tops[i] = tag_in(span, math.min(math.floor(point / span.top), span.count - 1) + 1), span.top
  end
  return {next = 1, count = wanted, tags = tags, tops = tops}
end

-- Has probes and the tenants in the cursor's way read, in one command, for the picks that are still wanted.
local function aim(call, round)
  local line, wanted = round.line, round.wanted
  local probes = draw_probes(call, line, wanted + FIRST - 1)
  if not round.passed then
    draws.tags_from(line, (call.queue.cursor + 1) % line.tenants, math.min(wanted, line.tenants), probes.tags)
    round.passed = {unpack(probes.tags, probes.count + 1)}
  end
  accounts.read(call, probes.tags)
  round.probes = probes
  return probes
end

-- Has a tenant in the pool, once: behind those with a lower virtual time, and equals. The pool keeps its bound; who has
-- the highest virtual time goes.
local function add(call, round, account)
  local pool, times, pooled = round.pool, round.times, round.pooled
  if not account or pooled[account] then return end
  local time, place = accounts.tentative_of(call, account), #pool
  if place == round.most then
    if times[place] <= time then return end
    pooled[pool[place]] = nil
    place = place - 1
  end
  while place > 0 and times[place] > time do
    pool[place + 1], times[place + 1] = pool[place], times[place]
    place = place - 1
  end
  pool[place + 1], times[place + 1], pooled[account] = account, time, true
end

-- Draws one tenant, unless too many probes in a row hit an empty seat.
local function draw(call, round)
  local probes = round.probes
  for _ = 1, PROBES do
    if probes.next > probes.count then probes = aim(call, round) end
    local i = probes.next
    local account, top = account_of(call, round, probes.tags[i]), probes.tops[i]
    probes.next = i + 1
    if account then
      if seats.is_outside(accounts.rate_of(call, account), top) then accounts.touch(call, account) end
      return add(call, round, account)
    end
  end
end

-- Moves the cursor on, to the next tenant.
local function pass_on(call, round)
  local queue, passed, passes = call.queue, round.passed, round.passes
  queue.cursor, round.passes = (queue.cursor + 1) % round.line.tenants, passes + 1
  add(call, round, account_of(call, round, passed[passes % #passed + 1]))
end

-- The one of all tenants: those of equal virtual time come by chance.
local function choose_of_few(call, round)
  local count = round.line.tenants
  if not round.passed then
    round.passed = draws.tags_from(round.line, 0, count, {})
    accounts.read(call, round.passed)
    local first = count > 1 and math.floor(calls.random(call) * count) or 0
    for i = first, first + count - 1 do add(call, round, account_of(call, round, round.passed[i % count + 1])) end
  end
  return round.pool[1]
end

-- A round of choices among the tenants that have slots now; round.wanted: how many choices there will be, at most.
-- round.pool: those that were looked at and may be served, by virtual time (round.times). round.ahead: what is expected
-- of running leases puts all ahead of the clock, on average by so much for each of these leases.
function draws.begin(call, wanted)
  local queue, line = call.queue, draws.read_line(call)
  local is_shared_by_time = queue.share == SHARE_TIME and queue.weight_sum > 0
  local has_slots = is_shared_by_time and queue.slots > 0
  call.slots_per_weight = has_slots and (queue.slots - queue.leased + queue.running) / queue.weight_sum or 0
  return {line = line, wanted = wanted, pool = {}, times = {}, pooled = {}, most = line.tenants > FEW and POOL or FEW,
    probes = {next = 1, count = 0}, passed = false, passes = 0, is_limited = queue.limited == 1,
    ahead = is_shared_by_time and call.mean / 2 / queue.weight_sum or 0}
end

-- The tenant with a slot that is to be served next; nil if none is left.
function draws.choose(call, round)
  local queue, slots, pool, times = call.queue, round.line.tenants, round.pool, round.times
  if slots <= FEW then return slots > 0 and choose_of_few(call, round) or nil end
  for _ = 1, round.passes == 0 and FIRST or 1 do draw(call, round) end
  pass_on(call, round)
  local latest = queue.level + queue.running * round.ahead
  for _ = 1, REDRAWS do
    local best = pool[1]
    if best and times[1] <= latest + accounts.expected_of(call, best) / 2 / best.weight then break end
    draw(call, round)
  end
  return pool[1]
end

-- The chosen tenant is served: it leaves the pool.
function draws.take(call, round)
  table.remove(round.times, 1)
  local account = table.remove(round.pool, 1)
  round.pooled[account] = nil
  return accounts.touch(call, account)
end

-- A tenant has been served: it is in the pool (again) if it has a slot, and more.
function draws.give_back(call, round, account)
  if account.slot > 0 and account.standing ~= 0 then add(call, round, account) end
end
