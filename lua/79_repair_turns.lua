-- Repair (68_repair.lua): groups and their turns.
--
-- Every group with ready tasks has a turn by now (69_repair_tasks.lua). An id in a group is right if it is of a
-- ready task of that group and priority; any other goes. Ready tasks that no group has go to its end, as lost ones.
do

local jobs, part, note = repairs.jobs, repairs.part, repairs.note

local function rest_of(job)
  local priority, name, group = job.rest:match('^(%d+):([^:]*):?(.*)$')
  return tonumber(priority), {name = name}, group
end

-- Sees that no turn is before the clock.
local function mend_clock(call, at)
  local first = redis.call('ZRANGE', at, 0, 0, 'WITHSCORES')
  if first[1] == '' then return end
  redis.call('ZADD', at, first[2], '')
  note(call, 'turns', 1)
end

-- Asks for the groups of a tenant and priority.
function jobs.turns(call, job)
  local priority, t = rest_of(job)
  local at = priorities.turns(call, t, priority)
  if job.cursor == '0' then mend_clock(call, at) end
  local page = redis.call('ZSCAN', at, job.cursor, 'COUNT', repairs.PAGE)
  for i = 1, #page[2], 2 do
    local member = page[2][i]
    if member:sub(1, 1) == turns.LOOSE and member ~= turns.LOOSE then
      repairs.ask(call, 'group', job.rest .. member)
    elseif member ~= turns.LOOSE and member ~= '' then
      note(call, 'turns', redis.call('ZREM', at, member))
    end
  end
  job.cursor, call.repair.left = page[1], call.repair.left - #page[2] / 2
  if page[1] ~= '0' then return false end
  note(call, 'turns', turns.leave(call, t, priority, {}))
  return true
end

-- Sees that a group holds its ready tasks and nothing else; one without any loses its turn.
function jobs.group(call, job)
  local priority, t, group = rest_of(job)
  local at, ready, first = turns.group_key(call, t, priority, group), part(call, 'ready:' .. t.name),
    tonumber(job.cursor)
  local page, ids, wrong = redis.call('ZRANGE', at, first, first + repairs.PAGE - 1, 'WITHSCORES'), {}, {}
  for i = 1, #page, 2 do
    ids[#ids + 1] = page[i]
    call.queue.sequence = math.max(call.queue.sequence, math.abs(tonumber(page[i + 1])))
  end
  task_options.read(call, ids)
  for _, id in ipairs(ids) do
    local asked = task_options.of(call, id)
    local is_here = asked.priority == priority and turns.group_of(asked) == group
    if not is_here or redis.call('ZREM', ready, id) == 0 then wrong[#wrong + 1] = id end
  end
  write('ZREM', at, wrong)
  note(call, 'turns', #wrong)
  local sums = repairs.kept(call, 'sums', SUMS, t.name)
  sums.ready, sums.grouped = sums.ready + #ids - #wrong, sums.grouped + #ids - #wrong
  job.cursor, call.repair.left = text(first + #ids - #wrong), call.repair.left - #ids
  if #ids > 0 then return false end
  if redis.call('EXISTS', at) == 0 then
    turns.leave(call, t, priority, {turns.LOOSE .. group})
    note(call, 'turns', 1)
  end
  return true
end

end
