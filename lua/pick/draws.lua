-- needs: accounts, calls, limits
--
-- Choosing among the tenants that have seats: rules 2 and 4 of pick/README.md. A round looks at once at all tenants
-- that it may need. It knows them by their tags, and compares them packed. No seat changes meanwhile.

local FEW = 16       -- up to this number of tenants, a round looks at all of them
local LOOKS = 2      -- otherwise, tenants that it looks at for each pick
local FIRST = 4      -- the least that it looks at
local REDRAWS = 4    -- more tenants that it looks at for each pick, while too few are due
local BLOCKS, WIDEST = 8, 64  -- of a throw: blocks, at least; seats of a block, at most
local CURSOR = 4     -- picks for which the cursor looks at one tenant
local PAGE = 1024    -- seats of a class that is read as a whole, at most
local PACE = ACCOUNT.format:match('^<.......')  -- the fields that tenants are compared by, up to `ready`

local function by_class(one, other) return one.class < other.class end

-- The seats as a line that blocks are thrown at: one span per class that has tenants, in the order of the classes.
function draws.read_line(call)
  local line, moved, n, all, tenants = {}, call.moved_tags, 0, 0, 0
  for class, count in pairs(calls.classes_of(call)) do
    if count > 0 then
      local length = count * 2 ^ class
      n, all, tenants = n + 1, all + length, tenants + count
      line[n] = {class = class, at = call.prefix .. 'class:' .. class, count = count, length = length,
        changed = moved and moved[class], slots = false}
    end
  end
  if n > 1 then table.sort(line, by_class) end
  line.length, line.tenants = all, tenants
  return line
end

-- Adds the tags in `count` seats of a span behind the first `before`, seen through the changes that this call has not
-- written yet.
local function add_tags(span, before, count, tags)
  local slots, changed, n, last = span.slots, span.changed, #tags, 4 * before
  if not slots then
    if span.count <= PAGE then
      slots = redis.call('GETRANGE', span.at, 0, 4 * span.count - 1)
      span.slots = slots
    else
      slots, last = redis.call('GETRANGE', span.at, last, last + 4 * count - 1), 0
    end
  end
  for k = 1, count do
    tags[n + k], last = changed and changed[before + k] or slots:sub(last + 1, last + 4), last + 4
  end
end

-- Adds the tags of `count` seats from a place of the line on; after the last one comes the first.
function draws.tags_from(line, place, count, tags)
  while count > 0 do
    for i = 1, #line do
      local span = line[i]
      local some = math.min(span.count - place, count)
      if some > 0 then
        add_tags(span, place, some, tags)
        place, count = place + some, count - some
      end
      place = place - span.count
    end
  end
  return tags
end

-- Throws blocks at the line: adds the tags of some `count` tenants, of each class its part by the length of its span.
-- All seats of a class are equally likely.
local function throw(call, line, count, tags)
  local width, random = 1, calls.random
  while 2 * width * BLOCKS <= count and width < WIDEST do width = 2 * width end
  for i = 1, #line do
    local span = line[i]
    local slots, share = span.count, count * span.length / line.length
    if share >= slots then
      add_tags(span, 0, slots, tags)
    else
      local blocks = math.ceil(slots / width)
      for _ = 1, share / width + random(call) do
        local place = random(call) * blocks
        local before = width * (place - place % 1)
        add_tags(span, before, math.min(width, slots - before), tags)
      end
    end
  end
end

-- True if a tenant that has a seat cannot be served any more: it loses the seat when the round is over. Only the call
-- itself, or lowering a limit for all tenants, can cause that.
local function is_out(call, account)
  if call.queue.limited == 0 and call.touched[account.tag] == nil then return false end
  if not call.passed_over[account] and limits.is_eligible(call, account) then return false end
  accounts.touch(call, account)
  return true
end

-- True if the tenant's share of the slots has room for one more lease.
function draws.has_room(round, account)
  return account.weight * round.slots_per_weight - account.leased >= 1
end

-- Looks at tenants: each that can be served is a candidate, once. Returns how many of them are due.
local function look_at(call, round, tags, due_until)
  local times, of_time, compare, due, n = round.times, round.of_time, round.compare, 0, #round.times
  local is_seen, next_of_same_time = round.is_seen, round.next_of_same_time
  local kept, known, opened, unpack_some = round.kept, call.packed, call.accounts, struct.unpack
  accounts.read(call, tags)
  if call.queue.limited == 1 then
    for _, tag in ipairs(tags) do accounts.at(call, tag) end
  end
  for i = 1, #tags do
    local tag = tags[i]
    if not is_seen[tag] then
      local account, time, step, room = opened[tag], nil, nil, nil
      if not account then
        local packed = known[tag]
        if packed then time, step, room = compare(unpack_some(PACE, packed)) end
      elseif not is_out(call, account) then
        time, step, room = compare(account.weight, account.base, account.starts, account.estimate, account.leased,
          account.loan, account.ready)
      end
      is_seen[tag] = true
      if time then
        n = n + 1
        if of_time[time] then next_of_same_time[tag] = of_time[time] end
        times[n], of_time[time] = time, tag
        kept = kept + room
        if room > 0 or time <= due_until + step / 2 then due = due + 1 end
      end
    end
  end
  round.kept = kept
  return due
end

-- Looks at as many tenants as the round may need. Running leases count at their estimate, which puts tenants ahead of
-- the clock: on average by `ahead` for each of these leases. The round may serve the tenants in `times`, from `next`
-- on: their virtual times, in order. `of_time` maps a time to a tenant's tag, and `next_of_same_time` that tag to
-- another one of the same time. `is_seen` has all tags that were looked at. `kept` of the wanted picks are reserved for
-- tenants with room in their shares.
function draws.look(call, round)
  local queue, line, wanted, tags = call.queue, draws.read_line(call), round.wanted, {}
  if line.tenants == 0 then return end
  local is_shared_by_time = queue.share == SHARE_TIME and queue.weight_sum > 0
  round.slots_per_weight = is_shared_by_time and (queue.running + wanted) / queue.weight_sum or 0
  round.compare = accounts.comparison(call, round.slots_per_weight)
  round.is_seen, round.of_time, round.next_of_same_time = {}, {}, {}
  local ahead = is_shared_by_time and call.mean / 2 / queue.weight_sum or 0
  local due_until = queue.level + queue.running * ahead
  if line.tenants <= math.max(FEW, LOOKS * wanted) then
    local first = line.tenants > 1 and math.floor(calls.random(call) * line.tenants) or 0
    look_at(call, round, draws.tags_from(line, first, line.tenants, tags), due_until)
  else
    local passed, left = math.ceil(wanted / CURSOR), REDRAWS * wanted + FIRST
    draws.tags_from(line, queue.cursor % line.tenants, passed, tags)
    queue.cursor = (queue.cursor + passed) % line.tenants
    throw(call, line, math.max(LOOKS * wanted, FIRST), tags)
    local due = look_at(call, round, tags, due_until)
    while due < wanted and left > 0 do
      local count = math.max(LOOKS * (wanted - due), FIRST)
      tags, left = {}, left - count
      throw(call, line, count, tags)
      due = due + look_at(call, round, tags, due_until)
    end
  end
  table.sort(round.times)
end

-- Removes the next tenant to serve from the round, and those before it that would take slots kept for others. Returns
-- its tag; nil if there is none.
function draws.take(call, round)
  local time = round.times[round.next]
  while time do
    local tag = round.of_time[time]
    round.next, round.of_time[time] = round.next + 1, round.next_of_same_time[tag]
    if round.wanted - round.count > round.kept then return tag end
    if draws.has_room(round, accounts.at(call, tag)) then return tag end
    time = round.times[round.next]
  end
  return nil
end

-- Puts back the tenant that was taken last: it is not served now.
function draws.untake(round, tag)
  round.next = round.next - 1
  round.of_time[round.times[round.next]] = tag
end

-- A tenant has been served, and has more tasks. It comes again at its new virtual time, behind the others of that time.
-- `room`: how many picks are kept for it.
function draws.give_back(round, tag, time, room)
  local times, of_time, next_of_same_time, place = round.times, round.of_time, round.next_of_same_time, round.next
  local latest, behind = times[round.most], #times + 1
  if latest and time >= latest and room == 0 then return end
  while place < behind do
    local middle = math.floor((place + behind) / 2)
    if times[middle] < time then place = middle + 1 else behind = middle end
  end
  table.insert(times, place, time)
  next_of_same_time[tag] = nil
  local last = of_time[time]
  if not last then
    of_time[time] = tag
    return
  end
  while next_of_same_time[last] do last = next_of_same_time[last] end
  next_of_same_time[last] = tag
end
