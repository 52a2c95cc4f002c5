-- needs: calls, close, limits, records, repair_steps
--
-- Repair: a queue is built anew from what is true of it.
--
-- True are the records in `tasks` (with `payloads` and `task_options`), deaths, runs, the times in `delayed`, accounts
-- (weight, base, books), batches, and what operators set. All else follows from that: every derived key is
-- dropped, every count is zero, and then each task goes to its place by the functions that enqueue and tick use
-- (operate/repair_steps.lua has the steps). So what those functions keep needs no care here.
--
-- A call does one page of one step; `repair` says how far it is. If a call failed half way, or the store is another one
-- than before (by its run id: cursors are good for one life of one store), the repair begins anew, which it can at any
-- time: nothing that is true is dropped.
--
-- Meanwhile the queue is blocked (BLOCKED_REPAIR): claims give nothing, whatever else changes it is refused, and the
-- time is nobody's service (`jump_to` in base/calls.lua).

local LOWEST = -2 ^ 52  -- the level meanwhile: tenants get slots with the virtual time that they have

-- Blocks the queue, and sets all that it counts to zero.
local function clear(call)
  local q, hours = call.queue, redis.call('HGET', key(call, 'opening_hours'), '')
  for _, name in ipairs({'ready', 'pending', 'delayed', 'leased', 'dead', 'remembered', 'tasks_with_options',
      'loans', 'weight_sum', 'running', 'servable', 'cursor', 'sweeping'}) do
    q[name] = 0
  end
  q.classes, q.minute, q.level = {}, records.minute(call), LOWEST
  q.limited = redis.call('HEXISTS', key(call, 'limits'), '')
  limits.block(q, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
  limits.block(q, BLOCKED_REPAIR, true)
end

-- How far the repair is: {number, life, level, step, cursor}; begins it, or begins it anew.
local function load(call)
  local found = redis.call('HMGET', key(call, 'repair'), 'number', 'life', 'level', 'step', 'cursor', 'is_open')
  local life, q = calls.life_of_store(), call.queue
  local state = {number = tonumber(found[1] or call.now), life = life, level = found[3] or text(q.level),
    step = tonumber(found[4] or 1), cursor = found[5] or '0'}
  if found[2] ~= life or found[6] ~= '0' or q.blocked < BLOCKED_REPAIR then
    state.step, state.cursor = 1, '0'
    clear(call)
  end
  redis.call('HSET', key(call, 'repair'), 'number', text(state.number), 'life', life, 'level', state.level,
    'is_open', 1)
  return state
end

local function save(call, state)
  redis.call('HSET', key(call, 'repair'), 'step', state.step, 'cursor', state.cursor, 'is_open', 0)
end

local function finish(call, state)
  local q = call.queue
  redis.call('DEL', key(call, 'repair'))
  limits.block(q, BLOCKED_REPAIR, false)
  q.level, call.readied = tonumber(state.level), q.servable > 0
end

-- repair(keys, argv): build some of a queue anew, which is blocked until all is.
--   argv  3 number of the repair (empty: begin one, or go on with the one that is under way)
--   out   "more" | "done" | "gone" (that repair is over), number, what is done next, how many tasks, and tenants, have
--         their places
function drains.repair(keys, args)
  local call, given = calls.ask(keys, args), args[3] ~= '' and check_whole(args[3], 'number', 0, HORIZON_MS)
  local q, known = call.queue, tonumber(redis.call('HGET', key(call, 'repair'), 'number') or -1)
  if given and given ~= known then return {'gone', given, '', 0, 0} end
  local state = load(call)
  local next_cursor = repair_steps.all[state.step][2](call, state.cursor)
  if not next_cursor then state.step = state.step + 1 end
  state.cursor = next_cursor or '0'
  local step = repair_steps.all[state.step]
  if step then save(call, state) else finish(call, state) end
  close.call(call)
  return {step and 'more' or 'done', state.number, step and step[1] or '',
    q.ready + q.pending + q.delayed + q.leased + q.dead, redis.call('HLEN', key(call, 'tenants'))}
end
