-- Choosing among the tenants that have slots: rules 2 and 4 of 10_tenants.lua. Slots stay as they are while a round
-- chooses.

local draws = {}  -- what other sections call
do

local FEW = 16     -- so many tenants are all looked at
local PROBES = 8   -- darts thrown for one draw before it is given up
local REDRAWS = 6  -- further draws while the best one is ahead of the clock

-- What a choice asks of a tenant that has a slot: its account (or the whole tenant); nil if nothing of it is left, or
-- its cap has been lowered: then it loses its slot when the round is over.
local function account_of(call, name)
  local t = call.tenants[name]
  if not t and call.queue.limited == 1 and call.packed[name] then t = unpack_tenant(call, name, call.packed[name]) end
  if t then
    if limits.is_eligible(call, t) then return t end
    touch(call, name)
    return nil
  end
  local account = call.accounts[name]
  if account then return account end
  if not call.packed[name] then return nil end  -- the tenant's record is gone; `repair` takes it out of its slot
  local weight, base, starts, leased, estimate, epoch = struct.unpack(ACCOUNT_FORMAT, call.packed[name])
  if epoch ~= call.queue.epoch then base, starts, estimate = 0, leased * call.queue.epoch_at, 0 end
  account = {name = name, weight = weight, base = base, starts = starts, leased = leased, estimate = estimate,
    tentative = false}
  call.accounts[name] = account
  return account
end

-- The slots as a line that darts are thrown at: one span per class that has tenants, in the order of the classes.
function draws.line_up(call)
  local line = {length = 0, slots = 0}
  for class, count in pairs(call.queue.classes) do
    if count > 0 then
      local top = 2 ^ class
      line[#line + 1] = {class = class, stem = slot_field(class, ''), top = top, count = count, length = count * top}
      line.length, line.slots = line.length + count * top, line.slots + count
    end
  end
  table.sort(line, function(one, other) return one.class < other.class end)
  return line
end

-- The tenants in these slots, seen through the changes that this call has not written yet.
local function read_slots(call, fields)
  local names = redis.call('HMGET', key(call, 'slots'), unpack(fields))
  if next(call.slots) then
    for i = 1, #fields do names[i] = call.slots[fields[i]] or names[i] end
  end
  read_tenants(call, names)
  return names
end

-- The fields of `count` slots from a place of the line on; after the last one comes the first.
local function fields_from(line, place, count)
  local fields, first = {}, place
  while #fields < count do
    for _, span in ipairs(line) do
      for slot = first + 1, math.min(span.count, first + count - #fields) do
        fields[#fields + 1] = span.stem .. slot
      end
      first = math.max(first - span.count, 0)
    end
  end
  return fields
end

-- Throws darts: the slots that they fell into, how far into the slot, and the tops of the classes.
local function throw_darts(call, line, wanted)
  local fields, inside, tops = {}, {}, {}
  for i = 1, wanted do
    local point, span = random(call) * line.length, nil
    for s = 1, #line do
      span = line[s]
      if point < span.length then break end
      point = point - span.length
    end
    local slot = math.min(math.floor(point / span.top), span.count - 1)
    fields[i], inside[i], tops[i] = span.stem .. slot + 1, point - slot * span.top, span.top
  end
  return fields, inside, tops
end

-- Has darts and the tenants in the cursor's way read, in one command, for the picks that are still wanted: two hits for
-- each pick; misses are made good by a smaller refill.
local function aim(call, round)
  local line, darts, wanted = round.line, {next = 1}, round.wanted
  darts.fields, darts.inside, darts.tops = throw_darts(call, line, 2 * wanted + 2)
  local fields, count = darts.fields, #darts.fields
  if not round.passed then
    for _, field in ipairs(fields_from(line, (call.queue.cursor + 1) % line.slots, math.min(wanted, line.slots))) do
      fields[#fields + 1] = field
    end
  end
  darts.names = read_slots(call, fields)
  darts.count = count
  round.passed = round.passed or {unpack(darts.names, count + 1)}
  round.darts = darts
end

-- One tenant by rate, or nil when too many darts in a row missed.
local function draw(call, round)
  for _ = 1, PROBES do
    if not round.darts or round.darts.next > round.darts.count then aim(call, round) end
    local darts = round.darts
    local i = darts.next
    darts.next = i + 1
    local account = account_of(call, darts.names[i])
    if account then
      local rate = rate_of(call, account)
      if is_outside(rate, darts.tops[i]) then account = touch(call, account.name) end
      if darts.inside[i] < rate then return account end
    end
  end
  return nil
end

-- Of two tenants (or nil) the one with the lower virtual time.
local function lower(call, one, other)
  if not (one and other) then return one or other end
  return tentative_of(call, other) < tentative_of(call, one) and other or one
end

-- Moves the cursor on; returns the tenant there, if anything is left of it.
local function pass_on(call, round)
  local q = call.queue
  q.cursor = (q.cursor + 1) % round.line.slots
  round.passes = (round.passes or 0) + 1
  return account_of(call, round.passed[(round.passes - 1) % #round.passed + 1])
end

-- The one of all tenants: those of equal virtual time come by chance.
local function choose_of_few(call, round)
  local count, best, least = round.line.slots, nil, math.huge
  round.few = round.few or read_slots(call, fields_from(round.line, 0, count))
  local first = count > 1 and math.floor(random(call) * count) or 0
  for i = first, first + count - 1 do
    local account = account_of(call, round.few[i % count + 1])
    local tentative = account and tentative_of(call, account)
    if tentative and tentative < least then best, least = account, tentative end
  end
  return best
end

-- The tenant with a slot that is to be served next; nil if none is left.
function draws.choose(call, round)
  local q, line = call.queue, round.line
  if line.slots <= FEW then return line.slots > 0 and choose_of_few(call, round) or nil end
  local best = lower(call, draw(call, round), draw(call, round))
  -- what is expected of running leases puts all ahead of the clock, by so much on average
  local spread = q.share == SHARE_TIME and q.weight_sum > 0 and q.running / q.weight_sum * mean_of(q) / 2 or 0
  for _ = 1, REDRAWS do
    local enough = q.level + spread + (best and expected_of(call, best) / 2 / best.weight or 0)
    if not best or tentative_of(call, best) <= enough then break end
    best = lower(call, best, draw(call, round))
  end
  return lower(call, best, pass_on(call, round))
end

end
