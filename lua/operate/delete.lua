-- needs: calls, close
--
-- The beginning and the end of a queue.
--
-- A queue's stage is in its record: UNMADE (nothing was ever stored; workers may have asked), MADE, or DELETING.
-- `make_queue` is called after the queue is registered (service/registry.lua) and before anything is stored in it. A
-- server that has not noticed a deletion gets the refusal `unmade`, and makes the queue anew.
--
-- A queue ends in one of two ways; afterwards its caller removes the entry in the registry that it read before.
-- `delete_queue` blocks the queue, so that every other verb is refused with `deleting`. Each call then looks through a
-- part of the store's keys, and deletes those of the queue; the last call deletes the record. Any server may continue
-- at any time. A key of any size is one UNLINK, so a call's work is bounded.
-- `forget_queue` deletes the record of an unused queue, which has no other key that matters.

local KEYS_PER_CALL = 150
local WAYS = {empty = true, any = true, begun = true, hold = true, free = true}
local HAS_SOMETHING = {'tenants', 'tasks', 'limits', 'opening_hours', 'webhooks'}  -- all other keys belong to a tenant
local LAST = {queue = true, deleting = true, test = true}  -- deleted last
local HISTORY = {'history:10', 'history:60', 'history:900', 'history_last'}

local function unlink(call, names)
  local doomed = {}
  for i, name in ipairs(names) do doomed[i] = call.prefix .. name end
  redis.call('UNLINK', unpack(doomed))
end

-- Deletes the queue's keys among the next ones of the store; returns whether there may be more. The search starts over
-- if the store was restarted.
local function sweep_some(call)
  local saved, life = redis.call('GET', call.prefix .. 'deleting') or '', calls.life_of_store()
  local cursor = saved:match('^' .. life .. ' (%d+)$') or '0'
  cursor = calls.unlink_some(call, cursor, KEYS_PER_CALL, function(name) return not LAST[name] end)
  redis.call('SET', call.prefix .. 'deleting', life .. ' ' .. cursor)
  return cursor ~= '0'
end

-- make_queue(keys, argv): open a registered queue, so that tasks and settings may be stored in it.
--   out   "ok", also if it was made before
function writes.make_queue(keys, args)
  local call = calls.open(keys, args)
  if call.queue.stage == UNMADE then
    call.queue.stage = MADE
    close.call(call)
  end
  return 'ok'
end

-- The contents of a queue: {name, how many, ...}.
local function contents(call)
  local queue, count = call.queue, redis.call('HLEN', call.prefix .. 'batches')
  return {'ready', queue.ready, 'pending', queue.pending, 'delayed', queue.delayed, 'leased', queue.leased,
    'dead', queue.dead, 'schedules', redis.call('ZCARD', call.prefix .. 'fires'),
    'open_batches', count - redis.call('ZCARD', call.prefix .. 'completed')}
end

-- delete_queue(keys, argv): delete a part of a queue; from the first call on every other verb is refused.
--   argv  3 the contents that it may have: "empty" (none), "any", or "begun": only continue a deletion. One partition
--         of several: "hold": block it if it is empty; "free": undo that. Neither touches a deletion that has begun
--         4 "block": begin, and delete nothing yet (may be missing)
--   out   "more" (of "hold" and "free": a deletion has begun) | "ok" (all is deleted, or it is held or free) |
--         "not_empty" (nothing was changed) | "gone" (there is no such queue, or its deletion has not begun); then its
--         contents: name, how many, ...
function drains.delete_queue(keys, args)
  local call, what = calls.open_any(keys, args), args[3]
  local queue, counts = call.queue, contents(call)
  if not WAYS[what] then refuse('bad_request', 'what') end
  if queue.stage == UNMADE or queue.stage == MADE and what == 'begun' then return {'gone'} end
  if what == 'free' or what == 'hold' and queue.stage == DELETING then
    if redis.call('EXISTS', call.prefix .. 'deleting') == 1 then return {'more', unpack(counts)} end
    if what == 'free' then
      queue.stage = MADE
      close.call(call)
    end
    return {'ok', unpack(counts)}
  end
  if queue.stage == MADE then
    for i = 2, #counts, 2 do
      if counts[i] > 0 and what ~= 'any' then return {'not_empty', unpack(counts)} end
    end
    queue.stage = DELETING
    close.call(call)
    if what == 'hold' then return {'ok', unpack(counts)} end
  end
  if args[4] == 'block' then
    redis.call('SET', call.prefix .. 'deleting', '', 'NX')
    return {'more', unpack(counts)}
  end
  if sweep_some(call) then return {'more', unpack(counts)} end
  unlink(call, {'queue', 'deleting', 'test'})
  return {'ok', unpack(counts)}
end

-- forget_queue(keys, argv): delete the record and the history of a queue that has been empty for a time, and has no
-- settings.
--   argv  3 for how long, ms  4 made_at: when it was made, by its entry in the registry  5 the server's own time (may
--         be empty): see `tick`  6 whether to delete it, or only to check (0, 1)
--   out   "ok" (also if it had no record) | "stays"
function drains.forget_queue(keys, args)
  local call = calls.open(keys, args)
  local for_ms, made_at = check_whole(args[3], 'for_ms', 0, HORIZON_MS), check_whole(args[4], 'made_at', 0, HORIZON_MS)
  local queue, is_meant, has = call.queue, check_whole(args[6], 'delete', 0, 1) == 1, {}
  calls.confirm(call, args[5])
  for i, name in ipairs(HAS_SOMETHING) do has[i] = call.prefix .. name end
  if math.max(queue.now, made_at) + for_ms > call.sure or queue.blocked > 0 or queue.settings ~= ''
      or redis.call('EXISTS', unpack(has)) > 0 then
    return 'stays'
  end
  if is_meant then unlink(call, {'queue', unpack(HISTORY)}) end
  return 'ok'
end
