-- needs: accounts, calls, limits
--
-- Choosing among the tenants that have slots: rules 2 and 4 of pick/README.md. A round looks at all whom it may need at
-- once, as they are packed, and opens the accounts of those that it serves. Slots stay as they are meanwhile.

local FEW = 16       -- so many tenants are all looked at
local LOOKS = 2      -- tenants that are looked at for each pick, or all if they are no more
local FIRST = 4      -- so many are looked at, at least
local REDRAWS = 4    -- and so many more for each pick while not enough of them are due
local BLOCKS, WIDEST = 8, 64  -- blocks in which they are looked at, or more; slots of a block, at most
local CURSOR = 4     -- picks for which the cursor looks at one tenant

-- The slots as a line that blocks are thrown at: one span per class that has tenants, in the order of the classes.
function draws.read_line(call)
  local line = {length = 0, tenants = 0}
  for class, count in pairs(call.queue.classes) do
    if count > 0 then
      local length = count * 2 ^ class
      line[#line + 1] = {class = class, at = key(call, 'class:' .. class), count = count, length = length,
        changed = call.moved_tags[class]}
      line.length, line.tenants = line.length + length, line.tenants + count
    end
  end
  table.sort(line, function(one, other) return one.class < other.class end)
  return line
end

-- Adds the tags in `count` slots of a span behind the first `before`, seen through the changes that this call has not
-- written yet.
local function add_tags(span, before, count, tags)
  local text, changed, n = redis.call('GETRANGE', span.at, 4 * before, 4 * (before + count) - 1), span.changed, #tags
  for k = 1, count do tags[n + k] = changed and changed[before + k] or text:sub(4 * k - 3, 4 * k) end
end

-- Adds the tags of `count` slots from a place of the line on; after the last one comes the first.
function draws.tags_from(line, place, count, tags)
  while count > 0 do
    for _, span in ipairs(line) do
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

-- Throws blocks at the line: adds the tags of some `count` tenants, of each class as many as its part of the line is
-- long. Each slot of a class is as likely as the others.
local function throw(call, line, count, tags)
  local width = 1
  while 2 * width * BLOCKS <= count and width < WIDEST do width = 2 * width end
  for _, span in ipairs(line) do
    local share = count * span.length / line.length
    if share >= span.count then
      add_tags(span, 0, span.count, tags)
    else
      local blocks, wanted = math.ceil(span.count / width), math.floor(share / width + calls.random(call))
      for _ = 1, wanted do
        local before = width * math.floor(calls.random(call) * blocks)
        add_tags(span, before, math.min(width, span.count - before), tags)
      end
    end
  end
end

-- True if a tenant that has a slot cannot be served any more: it loses the slot when the round is over. One that the
-- call has not touched can be, unless limits that all have are lower now.
local function is_out(call, account)
  if call.queue.limited == 0 and not call.touched[account.tag] then return false end
  if not call.passed_over[account] and limits.is_eligible(call, account) then return false end
  accounts.touch(call, account)
  return true
end

-- Looks at tenants: each that can be served is a candidate, once.
local function look_at(call, round, tags)
  local seen, times, of_time, next_of = round.seen, round.times, round.of_time, round.next_of
  local due, n = 0, #times
  local is_limited, opened, latest = call.queue.limited == 1, call.accounts, round.latest
  accounts.read(call, tags)
  for i = 1, #tags do
    local tag = tags[i]
    if not seen[tag] then
      seen[tag] = true
      local account = is_limited and accounts.at(call, tag) or opened[tag]
      if not (account and is_out(call, account)) then
        local time, step = accounts.time_at(call, tag)
        if time then
          n = n + 1
          times[n], next_of[tag], of_time[time] = time, of_time[time], tag
          if time <= latest + step / 2 then due = due + 1 end
        end
      end
    end
  end
  return due
end

-- Looks at as many tenants as the round may need. What is expected of running leases puts all ahead of the clock, on
-- average by `ahead` for each of these leases.
local function look(call, round)
  local queue, line, wanted, tags = call.queue, round.line, round.wanted, {}
  local is_shared_by_time = queue.share == SHARE_TIME and queue.weight_sum > 0
  local ahead = is_shared_by_time and call.mean / 2 / queue.weight_sum or 0
  round.latest = queue.level + queue.running * ahead
  if line.tenants <= math.max(FEW, LOOKS * wanted) then
    local first = line.tenants > 1 and math.floor(calls.random(call) * line.tenants) or 0
    look_at(call, round, draws.tags_from(line, first, line.tenants, tags))
  else
    local passed, left = math.ceil(wanted / CURSOR), REDRAWS * wanted + FIRST
    draws.tags_from(line, queue.cursor % line.tenants, passed, tags)
    queue.cursor = (queue.cursor + passed) % line.tenants
    throw(call, line, math.max(LOOKS * wanted, FIRST), tags)
    local due = look_at(call, round, tags)
    while due < wanted and left > 0 do
      local count = math.max(LOOKS * (wanted - due), FIRST)
      tags, left = {}, left - count
      throw(call, line, count, tags)
      due = due + look_at(call, round, tags)
    end
  end
  table.sort(round.times)
end

-- A round of up to `wanted` choices among the tenants that have slots now. Both lists are in order of virtual times:
-- whom it has looked at, from `next` on (times; of_time and next_of have the tags at each), and whom it has served and
-- has more, from `next_back` on.
function draws.begin(call, wanted)
  local queue = call.queue
  local has_slots = queue.share == SHARE_TIME and queue.weight_sum > 0 and queue.slots > 0
  call.slots_per_weight = has_slots and (queue.slots - queue.leased + queue.running) / queue.weight_sum or 0
  return {line = draws.read_line(call), wanted = wanted, latest = false, seen = {}, times = {}, of_time = {},
    next_of = {}, next = 1, back = {}, back_times = {}, next_back = 1, is_back = false}
end

-- The tenant with a slot that is to be served next; nil if the round knows of none.
function draws.choose(call, round)
  if not round.latest and round.line.tenants > 0 then look(call, round) end
  local time, back_time = round.times[round.next], round.back_times[round.next_back]
  round.is_back = back_time and (not time or back_time < time)
  if round.is_back then return round.back[round.next_back] end
  return time and accounts.at(call, round.of_time[time])
end

-- The chosen tenant is served: it leaves the round.
function draws.take(call, round, account)
  if round.is_back then
    round.next_back = round.next_back + 1
  else
    local time = round.times[round.next]
    round.of_time[time], round.next = round.next_of[account.tag], round.next + 1
  end
  return accounts.touch(call, account)
end

-- A tenant has been served: if it has a slot, and more, it may be chosen again, behind those of the same virtual time.
function draws.give_back(call, round, account)
  if account.slot <= 0 or account.standing == 0 then return end
  local back, times, place = round.back, round.back_times, #round.back
  local time = accounts.time_of(call, account)
  while place >= round.next_back and times[place] > time do
    back[place + 1], times[place + 1] = back[place], times[place]
    place = place - 1
  end
  back[place + 1], times[place + 1] = account, time
end
