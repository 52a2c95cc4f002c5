-- needs: accounts, priorities, task_options
--
-- Group order: how the groups of a tenant share what the tenant gets.
--
-- Theory. A task may name a group; a task of a batch that names none has its batch as its group; all others of the
-- tenant are *loose*, and count as one group more. Groups that have ready tasks of one priority share the dispatches of
-- that priority equally. Which tenant is served is not decided here.
--
-- This is self-clocked fair queueing (Golestani 1994) with tasks of length 1. Each group has the virtual finish time of
-- its next task, its *finish*; the lowest is served, the first by name of several. A dispatch moves its group's finish
-- on by 1, and sets the priority's *clock* to the finish that was served. A group that comes (back) gets the clock + 1:
-- it stands with those that were served last, behind those that have waited since; what it did not use is lost. So
-- while two groups wait, what they get differs by two dispatches at most, and between two dispatches of a group no more
-- come than there are groups. Of groups that come at one clock the first goes first: a finish is a little higher for
-- later ones, and lower for those that go to the head later, never by as much as one dispatch (`ORDERS`).
--
-- The ids of a group stand in the sorted set `group:<tenant>:<priority>:<group>`, in order of `queue.sequence`. The
-- finishes stand in `turns:<tenant>:<priority>`, an older word for them: the member of a group is a colon and its name,
-- the loose tasks are a colon, and the clock is the empty member: no finish is below it, so it always comes first. Both
-- sets exist while that priority has ready tasks of groups, and `priorities:<tenant>` names it; details.grouped counts
-- these tasks. The loose tasks stay where they are; they get a finish when a claim finds both loose tasks and groups.

local CLOCK, LOOSE = '', ':'
local ORDERS, ORDER_STEP = 2 ^ 20, 2 ^ -34
group_order.LOOSE = LOOSE

-- The group of a task that asks for this; empty: it is loose.
function group_order.group_of(asked)
  return asked.group ~= '' and asked.group or asked.batch
end

function group_order.group_key(call, account, priority, group)
  return call.prefix .. 'group:' .. account.name .. ':' .. priority .. ':' .. group
end

function group_order.key(call, account, priority)
  return call.prefix .. 'turns:' .. account.name .. ':' .. priority
end

-- How many groups of a priority have ready tasks, the loose ones as one of them; 0 if only these have.
function group_order.count(call, account, priority)
  local at, loose = group_order.key(call, account, priority), priorities.ready_key(call, account.name)
  local members = redis.call('ZCARD', at)  -- the clock is one of them
  if members == 0 then return 0 end
  local low, high = priorities.score(priority - 0.5, 0), priorities.score(priority + 0.5, 0)
  local has_loose = redis.call('ZCOUNT', loose, text(low), text(high)) > 0
  return members - 1 - (redis.call('ZSCORE', at, LOOSE) and 1 or 0) + (has_loose and 1 or 0)
end

-- Gives a finish to groups that have none: {group, order} each. Those that go to the head (order < 0) get a sooner one
-- even if they have one.
local function join(call, account, priority, groups)
  local at, joining = group_order.key(call, account, priority), {}
  local clock = redis.call('ZSCORE', at, CLOCK)
  if not clock then
    clock = 0
    redis.call('ZADD', at, clock, CLOCK)
    redis.call('ZADD', call.prefix .. 'priorities:' .. account.name, priority, priority)
  end
  for _, each in ipairs(groups) do
    local finish = clock + 1 + math.fmod(each.order, ORDERS) * ORDER_STEP
    joining[#joining + 1], joining[#joining + 2] = text(finish), LOOSE .. each.group
  end
  redis.call('ZADD', at, groups[1].order < 0 and 'LT' or 'NX', unpack(joining))
end

-- Collects a ready task that goes into a group, by priority: {group, order, entries} each; `entries` has scores and ids
-- alternately.
function group_order.note(groups, asked, id, order)
  local some, group = groups[asked.priority] or {}, group_order.group_of(asked)
  groups[asked.priority] = some
  if not some[group] then
    some[group] = {group = group, order = order, entries = {}}
    some[#some + 1] = some[group]
  end
  local entries = some[group].entries
  entries[#entries + 1], entries[#entries + 2] = text(order), id
end

-- Puts ready tasks into their groups.
function group_order.put(call, account, priority, groups)
  local details = accounts.details_of(call, account)
  for _, each in ipairs(groups) do
    write('ZADD', group_order.group_key(call, account, priority, each.group), each.entries)
    details.grouped = details.grouped + #each.entries / 2
  end
  join(call, account, priority, groups)
end

-- Removes groups that have no ready tasks left. After the last one all finishes are deleted.
function group_order.leave(call, account, priority, members)
  local at = group_order.key(call, account, priority)
  write('ZREM', at, members)
  local left = redis.call('ZCARD', at)
  if left == 1 or left == 2 and redis.call('ZSCORE', at, LOOSE) then
    redis.call('DEL', at)
    redis.call('ZREM', call.prefix .. 'priorities:' .. account.name, priority)
  end
end

-- Takes a ready task out of its group.
function group_order.take_out(call, account, priority, group, id)
  local details, at = accounts.details_of(call, account), group_order.group_key(call, account, priority, group)
  redis.call('ZREM', at, id)
  details.grouped = details.grouped - 1
  if redis.call('EXISTS', at) == 0 then group_order.leave(call, account, priority, {LOOSE .. group}) end
end

-- The line of groups of a tenant and priority, as the claim has left it so far; nil if there are no groups. `members`:
-- the groups, the next one first; `changed`: groups with a finish to write or delete; `seen`: how many of the store's
-- members have been read, the last one being `last` with the finish `seen_to`.
local function line_of(call, account, priority)
  local lines, at = table_in(call, 'lines'), group_order.key(call, account, priority)
  if lines[at] == nil then
    local clock = redis.call('ZSCORE', at, CLOCK)
    lines[at] = clock and {account = account, priority = priority, at = at, clock = tonumber(clock),
      members = {}, finish = {}, sources = {}, seen = 1, seen_to = 0, last = CLOCK, is_read = false, changed = {}}
  end
  return lines[at] or nil
end

-- True if one finish and member come before the other.
local function is_sooner(finish, member, other_finish, other)
  return finish < other_finish or finish == other_finish and precedes(member, other)
end

local function stand_in_line(line, member, finish)
  local members, low = line.members, 1
  local high = #members + 1
  line.finish[member] = finish
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other = members[middle]
    if is_sooner(line.finish[other], other, finish, member) then low = middle + 1 else high = middle end
  end
  table.insert(members, low, member)
end

-- The source of a group's tasks, or of the loose ones that the call has not taken, with its first `wanted` ids; with
-- fewer, if there are no more.
local function source_of(call, line, member, wanted)
  local source, account = line.sources[member], line.account
  if not source then
    local at = group_order.group_key(call, account, line.priority, member:sub(2))
    source = {ids = {}, taken = 0, first = 0, at = at, last_score = '+inf'}
    if member == LOOSE then
      source.at = priorities.ready_key(call, account.name)
      source.first = call.taken[source.at]
      source.last_score = text(priorities.score(line.priority + 0.5, 0))
    end
    line.sources[member] = source
  end
  local known = #source.ids
  if known < wanted and not source.is_read then
    local more = math.max(wanted - known, known)
    local offset = source.first + known
    local ids = redis.call('ZRANGE', source.at, '-inf', source.last_score, 'BYSCORE', 'LIMIT', offset, more)
    for i, id in ipairs(ids) do source.ids[known + i] = id end
    source.is_read = #ids < more
    if known > 0 and #ids > 0 then task_options.read(call, ids) end
  end
  return source
end

-- Gives the loose tasks a finish, as to a group that has just come; takes it from them if there are none left.
local function see_loose(call, line)
  local finish = line.finish[LOOSE] or redis.call('ZSCORE', line.at, LOOSE)
  local source = source_of(call, line, LOOSE, 1)
  local has_loose = #source.ids > source.taken
  if has_loose and not line.finish[LOOSE] then
    line.changed[LOOSE] = not finish
    stand_in_line(line, LOOSE, finish and tonumber(finish) or line.clock + 1)
  elseif not has_loose and finish then
    line.changed[LOOSE] = true
  end
end

-- Reads the next groups in line, with what each may need for `wanted` tasks in all.
local function read_line(call, line, wanted)
  local page, ids = redis.call('ZRANGE', line.at, line.seen, line.seen + wanted, 'WITHSCORES'), {}
  local count = #page / 2
  for i = 1, #page, 2 do
    local member, finish = page[i], tonumber(page[i + 1])
    line.seen, line.seen_to, line.last = line.seen + 1, finish, member
    if member ~= LOOSE then
      stand_in_line(line, member, finish)
      for _, id in ipairs(source_of(call, line, member, math.ceil(wanted / count) + 1).ids) do ids[#ids + 1] = id end
    end
  end
  line.is_read = count <= wanted
  if #ids > 0 then task_options.read(call, ids) end
end

-- The group that is next; nil if there is none.
local function first(call, line, wanted)
  local member = line.members[1]
  while not line.is_read and (not member or is_sooner(line.seen_to, line.last, line.finish[member], member)) do
    read_line(call, line, wanted)
    member = line.members[1]
  end
  return member
end

-- Takes the next task of the first group in line and moves its finish on; nil if it has no task. An empty group leaves.
local function take_next(call, line, member)
  local taken = line.sources[member].taken
  local source = source_of(call, line, member, taken + 2)
  local id = source.ids[taken + 1]
  table.remove(line.members, 1)
  line.changed[member] = true
  if id then
    source.taken, line.clock = taken + 1, line.finish[member]
    if source.ids[taken + 2] then
      stand_in_line(line, member, line.clock + 1)
      return id
    end
  end
  line.finish[member] = nil
  return id
end

-- Takes ids of one priority, group by group, until there are `wanted`.
function group_order.take(call, account, priority, wanted, ids)
  local line = line_of(call, account, priority)
  if line then see_loose(call, line) end
  while line and #ids < wanted do
    local member = first(call, line, wanted - #ids)
    if not member then break end
    local id = take_next(call, line, member)
    ids[#ids + 1] = id
    if id and member == LOOSE then
      local at = line.sources[LOOSE].at
      call.taken[at] = call.taken[at] + 1
    end
  end
end

-- Writes what a claim has taken from groups, and the finishes that are next.
function group_order.write(call)
  for _, line in pairs(call.lines) do
    if line then
      local details, moved, gone = accounts.details_of(call, line.account), {text(line.clock), CLOCK}, {}
      for member, source in pairs(line.sources) do
        if member ~= LOOSE and source.taken > 0 then
          redis.call('ZREMRANGEBYRANK', source.at, 0, source.taken - 1)
          details.grouped = details.grouped - source.taken
        end
      end
      for member, is_changed in pairs(line.changed) do
        local finish = line.finish[member]
        if not finish then
          gone[#gone + 1] = member
        elseif is_changed then
          moved[#moved + 1], moved[#moved + 2] = text(finish), member
        end
      end
      redis.call('ZADD', line.at, unpack(moved))
      group_order.leave(call, line.account, line.priority, gone)
    end
  end
  call.lines = false
end
