-- needs: calls, close, limits, remembered, repair_steps, seats
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
-- time is nobody's service (`length_of_jump` in base/calls.lua).

local LOWEST = -2 ^ 52  -- the level meanwhile: tenants get slots with the virtual time that they have

-- Blocks the queue, and sets all that it counts to zero.
local function clear(call)
  local queue, hours = call.queue, redis.call('HGET', call.prefix .. 'opening_hours', '')
  for _, name in ipairs({'ready', 'pending', 'delayed', 'leased', 'dead', 'remembered', 'tasks_with_options',
      'loans', 'weight_sum', 'running', 'servable', 'cursor'}) do
    queue[name] = 0
  end
  if queue.sweeping ~= WENT_BACK then queue.sweeping = NO_SWEEP end
  queue.classes, queue.minute = '', remembered.minute(call)
  queue.limited = redis.call('HEXISTS', call.prefix .. 'limits', '')
  limits.block(queue, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
  limits.block(queue, BLOCKED_REPAIR, true)
end

-- How far the repair is: its number, what is done next, step and cursor, and the store's life; begins it, or begins it
-- anew. Until the call has ended only the number is kept, so that one that fails half way is not gone on with.
local function begin(call)
  local at, life = call.prefix .. 'repair', calls.life_of_store()
  local saved = redis.call('GET', at) or text(call.now)
  local number, step, cursor = saved:match('^%d+'), saved:match('^%d+ ' .. life .. ' (%d+) (%d+)$')
  if not step or call.queue.blocked < BLOCKED_REPAIR then
    step, cursor = 1, '0'
    clear(call)
  end
  redis.call('SET', at, number)
  return number, tonumber(step), cursor, life
end

-- repair(keys, argv): build some of a queue anew, which is blocked until all is.
--   argv  3 number of the repair (empty: begin one, or go on with the one that is under way)
--   out   "more" | "done" | "gone" (that repair is over), number, what is done next, how many tasks, and tenants, have
--         their places
function drains.repair(keys, args)
  local call, given = calls.ask(keys, args), args[3] ~= '' and check_whole(args[3], 'number', 0, HORIZON_MS)
  local queue, at, level = call.queue, call.prefix .. 'repair', call.queue.level
  local known = redis.call('GET', at)
  if given and not (known and tonumber(known:match('^%d+')) == given) then return {'gone', given, '', 0, 0} end
  local number, step, cursor, life = begin(call)
  queue.level = LOWEST
  cursor = repair_steps.all[step][2](call, cursor)
  seats.seat_all(call)
  queue.level = level
  if not cursor then step = step + 1 end
  local next_step = repair_steps.all[step]
  if next_step then
    redis.call('SET', at, table.concat({number, life, step, cursor or '0'}, ' '))
  else
    redis.call('DEL', at)
    limits.block(queue, BLOCKED_REPAIR, false)
    call.readied, queue.hungry = queue.servable > 0, 1  -- that servers sleep may have been lost
  end
  close.call(call)
  return {next_step and 'more' or 'done', tonumber(number), next_step and next_step[1] or '',
    queue.ready + queue.pending + queue.delayed + queue.leased + queue.dead,
    redis.call('HLEN', call.prefix .. 'tenants')}
end
