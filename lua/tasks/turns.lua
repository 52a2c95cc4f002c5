-- needs: accounts, calls, priorities, task_options
--
-- Turns: how the groups of a tenant share what the tenant gets.
--
-- Theory. A task may name a group; a task of a batch that names none has its batch as its group; all others of the
-- tenant are *loose*, and count as one group more. Groups that have ready tasks of one priority share the dispatches of
-- that priority in proportion to their weights. Which tenant is served is not decided here.
--
-- This is self-clocked fair queueing (Golestani 1994) with tasks of length 1. Each group has a *turn*, a number; the
-- lowest is served, the first by name of several. A dispatch moves its group's turn on by 1 / weight, and sets the
-- priority's *clock* to the turn that was taken. A group that comes (back) has its turn at the clock + 1 / weight: with
-- those that were served last, behind those that have waited since; what it did not use is lost. The weight is that of
-- the task that is served, or comes; of loose tasks 1. So while two groups wait, what they get differs from their
-- shares by one dispatch each, and between two dispatches of a group no more come than there are groups, weights being
-- equal. Of groups that come at one turn the first goes first: a turn has a little more for who comes later, and less
-- for who goes to the head later, never as much as one dispatch (`ORDERS`).
--
-- The ids of a group stand in the sorted set `group:<tenant>:<priority>:<group>`, in order of `queue.sequence`, which
-- counts up; those that go to the head have it with a minus sign. The turns stand in `turns:<tenant>:<priority>`: the
-- member of a group is a colon and its name, the loose tasks are a colon, and the clock is the empty member: no turn is
-- below it, so it always comes first. Both sets exist while that priority has ready tasks of groups; details.grouped
-- counts these. The loose tasks stay in their list; they get their turn when a claim finds them beside groups.

local CLOCK, LOOSE = '', ':'
local ORDERS, ORDER_STEP = 2 ^ 20, 2 ^ -34
turns.LOOSE = LOOSE

-- The group of a task that asks for this; empty: it is loose.
function turns.group_of(asked)
  return asked.group ~= '' and asked.group or asked.batch
end

local function group_key(call, t, priority, group)
  return key(call, 'group:' .. t.name .. ':' .. priority .. ':' .. group)
end
turns.group_key = group_key

-- Gives groups a turn that have none: {group, weight, order} each; returns how many these were. Those that go to the
-- head (order < 0) get a sooner one if they have one.
function turns.join(call, t, priority, groups)
  local at, joining = priorities.turns(call, t, priority), {}
  local clock = redis.call('ZSCORE', at, CLOCK)
  if not clock then
    clock = 0
    redis.call('ZADD', at, clock, CLOCK)
  end
  for _, own in ipairs(groups) do
    local turn = clock + 1 / own.weight + math.fmod(own.order, ORDERS) * ORDER_STEP
    joining[#joining + 1], joining[#joining + 2] = text(turn), LOOSE .. own.group
  end
  return redis.call('ZADD', at, groups[1].order < 0 and 'LT' or 'NX', unpack(joining))
end

-- The next place in the order in which tasks come to their groups.
function turns.next_order(call)
  call.queue.sequence = call.queue.sequence + 1
  return call.queue.sequence
end

-- Notes a ready task among those that are to be put into groups of one priority: {group, weight, order, entries} each,
-- `entries` being scores and ids by turns.
function turns.note(call, groups, asked, id, is_at_head)
  local order, group = turns.next_order(call), turns.group_of(asked)
  if is_at_head then order = -order end
  local own = groups[group]
  if not own then
    own = {group = group, weight = asked.weight, order = order, entries = {}}
    groups[group], groups[#groups + 1] = own, own
  end
  own.entries[#own.entries + 1], own.entries[#own.entries + 2] = text(order), id
end

-- Puts ready tasks into their groups.
function turns.put(call, t, priority, groups)
  local d = accounts.details_of(call, t)
  for _, own in ipairs(groups) do
    write('ZADD', group_key(call, t, priority, own.group), own.entries)
    d.grouped = d.grouped + #own.entries / 2
  end
  turns.join(call, t, priority, groups)
end

-- Groups have no ready tasks any more. After the last one all turns go; returns how often that was.
function turns.leave(call, t, priority, members)
  local at = priorities.turns(call, t, priority)
  write('ZREM', at, members)
  local left = redis.call('ZCARD', at)
  if left == 1 or left == 2 and redis.call('ZSCORE', at, LOOSE) then return redis.call('DEL', at) end
  return 0
end

-- Takes a ready task out of its group.
function turns.take_out(call, t, priority, group, id)
  local d, at = accounts.details_of(call, t), group_key(call, t, priority, group)
  redis.call('ZREM', at, id)
  d.grouped = d.grouped - 1
  if redis.call('EXISTS', at) == 0 then turns.leave(call, t, priority, {LOOSE .. group}) end
end

-- The line of groups of a tenant and priority, as a claim has left it so far; nil where there are none. `line`: their
-- members, the next one first; `changed`: those whose turn is to be written, or has gone; `seen` of those in the store
-- have been read, the last of them `last`, with the turn `seen_to`.
function turns.line(call, t, priority)
  local lines, at = calls.table_of(call, 'lines'), priorities.turns(call, t, priority)
  if lines[at] == nil then
    local clock = redis.call('ZSCORE', at, CLOCK)
    lines[at] = clock and {tenant = t, priority = priority, at = at, clock = tonumber(clock), line = {}, turn = {},
      sources = {}, seen = 1, seen_to = 0, last = CLOCK, is_read = false, changed = {}}
  end
  return lines[at] or nil
end

-- Whether one turn and member come before others.
local function is_sooner(turn, member, other_turn, other)
  return turn < other_turn or turn == other_turn and precedes(member, other)
end

local function stand_in_line(own, member, turn)
  local line, low = own.line, 1
  local high = #line + 1
  own.turn[member] = turn
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_sooner(own.turn[line[middle]], line[middle], turn, member) then low = middle + 1 else high = middle end
  end
  table.insert(line, low, member)
end

-- Whether there are loose tasks. They have a turn from then on, as one who has just come, or none any more.
function turns.set_loose(own, has_loose)
  local turn = own.turn[LOOSE] or redis.call('ZSCORE', own.at, LOOSE)
  if has_loose and not own.turn[LOOSE] then
    own.changed[LOOSE] = not turn
    stand_in_line(own, LOOSE, turn and tonumber(turn) or own.clock + 1)
  elseif not has_loose and turn then
    own.changed[LOOSE] = true
  end
end

-- The first `wanted` ids of a group, or fewer, if there are no more.
local function ids_of(call, own, member, wanted)
  local source = own.sources[member]
  if not source then
    source = {ids = {}, taken = 0, at = group_key(call, own.tenant, own.priority, member:sub(2))}
    own.sources[member] = source
  end
  local known = #source.ids
  if known < wanted and not source.is_read then
    local more = math.max(wanted - known, known)
    local ids = redis.call('ZRANGE', source.at, known, known + more - 1)
    for i, id in ipairs(ids) do source.ids[known + i] = id end
    source.is_read = #ids < more
    if known > 0 and #ids > 0 then task_options.read(call, ids) end
  end
  return source
end

-- Reads the next groups in line, with what each may need for `wanted` tasks in all.
local function read_line(call, own, wanted)
  local page, ids = redis.call('ZRANGE', own.at, own.seen, own.seen + wanted, 'WITHSCORES'), {}
  local count = #page / 2
  for i = 1, #page, 2 do
    local member, turn = page[i], tonumber(page[i + 1])
    own.seen, own.seen_to, own.last = own.seen + 1, turn, member
    if member ~= LOOSE then
      stand_in_line(own, member, turn)
      for _, id in ipairs(ids_of(call, own, member, math.ceil(wanted / count) + 1).ids) do ids[#ids + 1] = id end
    end
  end
  own.is_read = count <= wanted
  if #ids > 0 then task_options.read(call, ids) end
end

-- Whose turn it is; nil: nobody's.
function turns.first(call, own, wanted)
  local member = own.line[1]
  while not own.is_read and (not member or is_sooner(own.seen_to, own.last, own.turn[member], member)) do
    read_line(call, own, wanted)
    member = own.line[1]
  end
  return member
end

-- The next task of the group that is first in line, and whether the group has more; nil: it has none.
function turns.next_id(call, own, member)
  local taken = own.sources[member].taken
  local source = ids_of(call, own, member, taken + 2)
  source.taken = math.min(taken + 1, #source.ids)
  return source.ids[taken + 1], source.ids[taken + 2] ~= nil
end

-- The first in line has had a dispatch.
function turns.move_on(own, member, weight, has_more)
  table.remove(own.line, 1)
  own.clock, own.turn[member], own.changed[member] = own.turn[member], nil, true
  if has_more then stand_in_line(own, member, own.clock + 1 / weight) end
end

-- The first in line has nothing: it leaves the line.
function turns.drop_first(own)
  local member = table.remove(own.line, 1)
  own.turn[member], own.changed[member] = nil, true
end

-- Writes what a claim has taken from groups, and the turns that are next.
function turns.write(call)
  for _, own in pairs(call.lines or {}) do
    if own then
      local d, moved, gone = accounts.details_of(call, own.tenant), {text(own.clock), CLOCK}, {}
      for _, source in pairs(own.sources) do
        if source.taken > 0 then redis.call('ZREMRANGEBYRANK', source.at, 0, source.taken - 1) end
        d.grouped = d.grouped - source.taken
      end
      for member, is_changed in pairs(own.changed) do
        local turn = own.turn[member]
        if not turn then
          gone[#gone + 1] = member
        elseif is_changed then
          moved[#moved + 1], moved[#moved + 2] = text(turn), member
        end
      end
      redis.call('ZADD', own.at, unpack(moved))
      turns.leave(call, own.tenant, own.priority, gone)
    end
  end
  call.lines = false
end
