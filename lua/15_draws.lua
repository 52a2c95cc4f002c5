-- Choosing among the tenants that have slots: rules 2 and 4 of 10_seats.lua. Slots stay as they are while a round
-- chooses.

local draws = {}  -- what other sections call
do

local FEW = 16     -- so many tenants are all looked at
local FIRST = 3    -- darts for the first pick of a round; one for each that follows
local POOL = 8     -- tenants that were looked at and not served, kept for the next picks of the round
local PROBES = 8   -- darts thrown for one draw before it is given up
local REDRAWS = 6  -- further draws while the best one is ahead of the clock
local WHOLE = 2048  -- classes of up to so many tenants are read whole

-- What a choice asks of a tenant that has a slot; nil if nothing of it is left, or its cap is lower now: then it
-- loses its slot when the round is over.
local function account_of(call, tag)
  local t = call.accounts[tag]
  if not t and (call.queue.limited == 1 or call.queue.max_shares == 1) then t = accounts.at(call, tag) end
  if not t then return accounts.look(call, tag) end  -- nil: its record is gone; `repair` takes it out of its slot
  if limits.is_eligible(call, t) then return t end
  accounts.touch(call, t)
  return nil
end

-- The slots as a line that darts are thrown at: one span per class that has tenants, in the order of the classes.
local function line_up(call)
  local line = {length = 0, slots = 0}
  for class, count in pairs(call.queue.classes) do
    if count > 0 then
      local top = 2 ^ class
      line[#line + 1] = {class = class, at = key(call, 'class:' .. class), top = top, count = count,
        length = count * top, tags = false, changed = call.slots and call.slots[class]}
      line.length, line.slots = line.length + count * top, line.slots + count
    end
  end
  table.sort(line, function(one, other) return one.class < other.class end)
  return line
end

-- The tag in a slot of a span, seen through the changes that this call has not written yet.
local function tag_in(span, slot)
  local tag = span.changed and span.changed[slot]
  if tag then return tag end
  if span.count > WHOLE then return redis.call('GETRANGE', span.at, 4 * slot - 4, 4 * slot - 1) end
  span.tags = span.tags or redis.call('GET', span.at) or ''
  return span.tags:sub(4 * slot - 3, 4 * slot)
end

-- Adds the tags of `count` slots from a place of the line on; after the last one comes the first.
local function tags_from(line, place, count, tags)
  local n, first, left = #tags, place, count
  while left > 0 do
    for _, span in ipairs(line) do
      for slot = first + 1, math.min(span.count, first + left) do
        n, left = n + 1, left - 1
        tags[n] = tag_in(span, slot)
      end
      first = math.max(first - span.count, 0)
    end
  end
  return tags
end

-- Throws darts: the tags in the slots that they fell into, and the tops of the classes.
local function throw_darts(call, line, wanted)
  local tags, tops = {}, {}
  for i = 1, wanted do
    local point, span = calls.random(call) * line.length, nil
    for s = 1, #line do
      span = line[s]
      if point < span.length then break end
      point = point - span.length
    end
    tags[i], tops[i] = tag_in(span, math.min(math.floor(point / span.top), span.count - 1) + 1), span.top
  end
  return {next = 1, count = wanted, tags = tags, tops = tops}
end

-- Has darts and the tenants in the cursor's way read, in one command, for the picks that are still wanted.
local function aim(call, round)
  local line, wanted = round.line, round.wanted
  local darts = throw_darts(call, line, wanted + FIRST - 1)
  if not round.passed then
    tags_from(line, (call.queue.cursor + 1) % line.slots, math.min(wanted, line.slots), darts.tags)
    round.passed = {unpack(darts.tags, darts.count + 1)}
  end
  accounts.read(call, darts.tags)
  round.darts = darts
end

-- Has a tenant in the pool, once.
local function add(round, t)
  if not t or round.pooled[t.tag] then return end
  round.pooled[t.tag], round.pool[#round.pool + 1] = true, t
end

-- Takes a tenant out of the pool; the last one moves into its place.
local function drop(round, place)
  local pool = round.pool
  local count = #pool
  round.pooled[pool[place].tag] = nil
  pool[place] = pool[count]
  pool[count] = nil
  if round.place == count then round.place = place end
end

-- Draws one tenant, unless too many darts in a row meet nobody.
local function draw(call, round)
  for _ = 1, PROBES do
    local darts = round.darts
    if not darts or darts.next > darts.count then
      aim(call, round)
      darts = round.darts
    end
    local i = darts.next
    darts.next = i + 1
    local account = account_of(call, darts.tags[i])
    if account then
      if seats.is_outside(accounts.rate_of(call, account), darts.tops[i]) then
        account = accounts.touch(call, accounts.at(call, account.tag))
      end
      return add(round, account)
    end
  end
end

-- Moves the cursor on, to the next tenant.
local function pass_on(call, round)
  local q = call.queue
  q.cursor = (q.cursor + 1) % round.line.slots
  round.passes = round.passes + 1
  add(round, account_of(call, round.passed[(round.passes - 1) % #round.passed + 1]))
end

-- The one in the pool that has the lowest virtual time, the first of equals, and its place.
local function lowest(call, round)
  local pool, best, place, least = round.pool, nil, nil, math.huge
  for i = 1, #pool do
    local t = pool[i]
    local tentative = t.tentative or accounts.tentative_of(call, t)
    if tentative < least then best, place, least = t, i, tentative end
  end
  round.place = place
  return best, least
end

-- Keeps the pool's bound: those with the highest virtual times go, the last of equals first.
local function trim(call, round)
  local pool = round.pool
  while #pool > POOL do
    local place, most = 1, -math.huge
    for i = 1, #pool do
      local tentative = accounts.tentative_of(call, pool[i])
      if tentative >= most then place, most = i, tentative end
    end
    drop(round, place)
  end
end

-- The one of all tenants: those of equal virtual time come by chance.
local function choose_of_few(call, round)
  local count = round.line.slots
  if not round.passed then
    round.passed = tags_from(round.line, 0, count, {})
    accounts.read(call, round.passed)
    local first = count > 1 and math.floor(calls.random(call) * count) or 0
    for i = first, first + count - 1 do add(round, account_of(call, round.passed[i % count + 1])) end
  end
  return (lowest(call, round))
end

-- A round of choices among the tenants that have slots now; round.wanted: how many choices there will be, at most.
function draws.begin(call, wanted)
  return {line = line_up(call), wanted = wanted, pool = {}, pooled = {}, passes = 0}
end

-- The tenant with a slot that is to be served next; nil if none is left.
function draws.choose(call, round)
  local q, line = call.queue, round.line
  if line.slots <= FEW then return line.slots > 0 and choose_of_few(call, round) or nil end
  for _ = 1, round.passes == 0 and FIRST or 1 do draw(call, round) end
  pass_on(call, round)
  local best, least = lowest(call, round)
  -- what is expected of running leases puts all ahead of the clock, by so much on average
  local spread = q.share == SHARE_TIME and q.weight_sum > 0 and q.running / q.weight_sum * accounts.mean_of(q) / 2 or 0
  for _ = 1, REDRAWS do
    if best and least <= q.level + spread + accounts.expected_of(call, best) / 2 / best.weight then break end
    draw(call, round)
    best, least = lowest(call, round)
  end
  trim(call, round)
  return best
end

-- The chosen tenant is served: its account, which stays in the pool while it can be served again.
function draws.serve(call, round, best)
  local t = accounts.touch(call, accounts.at(call, best.tag))
  round.pool[round.place] = t
  return t
end

-- A tenant has been served and has no more: it is not to be chosen again.
function draws.leave(round, t)
  if not round.pooled[t.tag] then return end
  for place = 1, #round.pool do
    if round.pool[place].tag == t.tag then return drop(round, place) end
  end
end

end
