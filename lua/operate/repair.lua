-- needs: calls, close, limits, remembered, repair_steps, seats
--
-- Repair: rebuilds a queue from its primary data.
--
-- Primary are the records in `tasks` (with `payloads` and `task_options`), deaths, runs, the times in `delayed`,
-- accounts (weight, base, books), batches, and all settings. The rest is derived: every derived key is deleted, every
-- count is set to zero, and then each task goes to its place by the functions that enqueue and tick use
-- (operate/repair_steps.lua has the steps). So this code need not know what those functions keep.
--
-- A call does one page of one step; the key `repair` has the progress. If a call failed between its writes, or the
-- store was restarted (its run id is another: cursors are valid for one life of one store), the repair starts over. It
-- can do so at any time, because no primary data is deleted.
--
-- Meanwhile the queue is blocked (BLOCKED_REPAIR): claims give nothing, other changes are refused, and the time counts
-- as no tenant's service (`length_of_jump` in base/calls.lua).

local LOWEST = -2 ^ 52  -- the level meanwhile: tenants get slots with the virtual time that they have

-- Blocks the queue, and sets all its counts to zero.
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

-- The progress of the repair: its number, the name of the next step, step and cursor, and the store's run id. Begins
-- the repair, or starts it over. Until the call has ended only the number is stored, so that the next call starts over
-- if this one fails.
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

-- repair(keys, argv): rebuild a part of a queue, which is blocked until the rebuild is complete.
--   argv  3 number of the repair (empty: begin one, or continue the one under way)
--   out   "more" | "done" | "gone" (that repair is over), number, the next step, how many tasks and how many tenants
--         are in their places
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
    call.readied, queue.hungry = queue.servable > 0, 1  -- the mark that servers sleep may have been lost
  end
  close.call(call)
  return {next_step and 'more' or 'done', tonumber(number), next_step and next_step[1] or '',
    queue.ready + queue.pending + queue.delayed + queue.leased + queue.dead,
    redis.call('HLEN', call.prefix .. 'tenants')}
end
