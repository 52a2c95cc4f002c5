-- Drawing tenants by rate: the darts of rule 2 (10_tenants.lua). Slots stay as they are while a round draws.

local SLOT_PROBES = 32  -- darts thrown for one draw before the round ends (a round empties tenants under the darts)

-- What a draw asks of a tenant that has a slot: weight, virtual time and estimate; nil if nothing of it is left, or its
-- cap has been lowered: then it loses its slot when the round is over.
local function account_of(call, name)
  local t = call.tenants[name]
  if not t and call.queue.limited == 1 then t = unpack_tenant(call, name, call.packed[name]) end
  if t then
    if is_eligible(call, t) then return t.weight, t.vtime, t.estimate end
    touch(call, name)
    return nil
  end
  local weight, vtime, estimate, epoch = struct.unpack('<dddd', call.packed[name])
  if epoch ~= call.queue.epoch then return weight, 0, 0 end
  return weight, vtime, estimate
end

-- The line that darts are thrown at: one span per class that has tenants, in the order of the classes.
local function line_up(call)
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

local function read_slots(call, fields)
  local names = redis.call('HMGET', key(call, 'slots'), unpack(fields))
  read_tenants(call, names)
  return names
end

-- Reads all tenants of the line at once, which pays when there are fewer of them than darts.
local function read_line(call, line)
  local fields = {}
  for _, span in ipairs(line) do
    for slot = 1, span.count do fields[#fields + 1] = slot_field(span.class, slot) end
  end
  local names, at = read_slots(call, fields), 0
  for _, span in ipairs(line) do
    span.names, at = {unpack(names, at + 1, at + span.count)}, at + span.count
  end
end

-- Throws darts: the tenants in the slots that they fell into, and how far into the slot.
local function throw_darts(call, line, wanted)
  local names, fields, inside = {}, {}, {}
  if not line[1].names and line.slots <= wanted then read_line(call, line) end
  for i = 1, wanted do
    local point, span = random(call) * line.length, nil
    for s = 1, #line do
      span = line[s]
      if point < span.length then break end
      point = point - span.length
    end
    local slot = math.min(math.floor(point / span.top), span.count - 1)
    inside[i] = point - slot * span.top
    if span.names then names[i] = span.names[slot + 1] else fields[i] = span.stem .. slot + 1 end
  end
  return #fields > 0 and read_slots(call, fields) or names, inside
end

-- One tenant by rate: its name, weight, virtual time and estimate; nil when SLOT_PROBES darts in a row missed. `darts`
-- is the round's quiver.
local function draw(call, line, darts)
  for _ = 1, SLOT_PROBES do
    if darts.next > #darts.names then
      darts.names, darts.inside = throw_darts(call, line, darts.refill)
      darts.next = 1
    end
    local i = darts.next
    darts.next = i + 1
    local weight, vtime, estimate = account_of(call, darts.names[i])
    if weight and darts.inside[i] < rate_of(call, weight, estimate) then
      return darts.names[i], weight, vtime, estimate
    end
  end
  return nil
end

-- The better of two draws, as `draw` tells it; a tenant that stands alone needs none.
local function draw_two(call, round)
  if round.line.slots == 0 then return nil end
  if round.line.slots == 1 then
    round.alone = round.alone or read_slots(call, {slot_field(round.line[1].class, 1)})[1]
    local weight, vtime, estimate = account_of(call, round.alone)
    return weight and round.alone, weight, vtime, estimate
  end
  local one, weight, vtime, estimate = draw(call, round.line, round.darts)
  if not one then return nil end
  local other, other_weight, other_vtime, other_estimate = draw(call, round.line, round.darts)
  if other and other_vtime < vtime then return other, other_weight, other_vtime, other_estimate end
  return one, weight, vtime, estimate
end
