-- needs: calls
--
-- The registry of queues: their names, makers, times of creation, and numbers of partitions if they have more than one.
-- Its prefix is not a queue's but `fq:{queues}`.
--
-- A tenant makes a queue by being the first to store something in it, and may make a limited number: `makers` counts
-- them. Queues made by operators count against no quota.
--
-- A removal names the entry that it read, and leaves any other one. So a queue that is made anew needs another entry,
-- also within the same ms or after the clock was put back: its time is later than `removed_ms`, the time of the latest
-- removed entry.

local MAX_QUOTA = 1000000

local function open_registry(keys, args)
  local call = {prefix = keys[1] .. ':', random_values = args[2]}
  call.now = calls.clock_ms(call, args[1])
  return call
end

-- add_queue(keys, argv): register a queue.
--   argv  3 queue  4 maker (a tenant; empty: an operator)  5 how many queues it may have made (empty: any number)
--         6 partitions of a new queue (missing: one)
--   out   {"ok" | "known" (by its maker until now), how many partitions it has}. Refused with `quota_exceeded queues`
--         where the maker has made as many already. The entry gets a new time in any case: a `remove_queue` with an
--         earlier entry leaves it.
function writes.add_queue(keys, args)
  local call, queue, maker = open_registry(keys, args), args[3], args[4]
  local quota = args[5] == '' and math.huge or check_whole(args[5], 'quota', 0, MAX_QUOTA)
  if maker ~= '' then check_tenant(maker) end
  local partitions = check_whole(args[6] or 1, 'partitions', unpack(BOUNDS.partitions))
  if #queue > 63 or not queue:find('^[a-z0-9][a-z0-9_-]*$') then refuse('bad_request', 'queue') end
  local entry = redis.call('HGET', call.prefix .. 'names', queue)
  if entry then
    local made_at, by = entry:match('^(%d+)( .*)$')
    redis.call('HSET', call.prefix .. 'names', queue, text(math.max(call.now, tonumber(made_at) + 1)) .. by)
    return {'known', tonumber(redis.call('HGET', call.prefix .. 'partitions', queue) or 1)}
  end
  if maker ~= '' then
    local made = tonumber(redis.call('HGET', call.prefix .. 'makers', maker) or 0)
    if made >= quota then refuse('quota_exceeded', 'queues') end
    redis.call('HINCRBY', call.prefix .. 'makers', maker, 1)
  end
  local removed_ms = tonumber(redis.call('GET', call.prefix .. 'removed_ms') or 0)
  redis.call('HSET', call.prefix .. 'names', queue, text(math.max(call.now, removed_ms + 1)) .. ' ' .. maker)
  if partitions > 1 then redis.call('HSET', call.prefix .. 'partitions', queue, partitions) end
  return {'ok', partitions}
end

-- remove_queue(keys, argv): remove a queue from the registry and from its maker's count.
--   argv  3 queue  4 its entry, as read: a queue made anew since then stays
--   out   "ok" | "gone" (there is no such entry)
function drains.remove_queue(keys, args)
  local call = open_registry(keys, args)
  if redis.call('HGET', call.prefix .. 'names', args[3]) ~= args[4] then return 'gone' end
  local made_ms, maker = args[4]:match('^(%d+) (.*)$')
  if tonumber(made_ms) > tonumber(redis.call('GET', call.prefix .. 'removed_ms') or 0) then
    redis.call('SET', call.prefix .. 'removed_ms', made_ms)
  end
  redis.call('HDEL', call.prefix .. 'names', args[3])
  redis.call('HDEL', call.prefix .. 'partitions', args[3])
  if maker ~= '' and redis.call('HINCRBY', call.prefix .. 'makers', maker, -1) <= 0 then
    redis.call('HDEL', call.prefix .. 'makers', maker)
  end
  return 'ok'
end
