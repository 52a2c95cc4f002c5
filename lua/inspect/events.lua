-- Reading the events of a tenant's tasks and batches (tasks/feeds.lua).

-- The highest id that was ever given in a feed, as a number.
local function newest_of(feed)
  local info = redis.call('XINFO', 'STREAM', feed)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return tonumber(info[i + 1]:match('%d+$')) end
  end
end

-- events(keys, argv): a tenant's events after an event, oldest first.
--   argv  3 tenant  4 after (an event's id; 0: all that is kept)  5 count (1..500)
--   out   oldest (the first id that is kept; the next one to be given, if none is), newest (0: none was ever given),
--         then per event: id, event, task or batch, at_ms, attempt, detail (of batch_completed: how many tasks were
--         done, dead, cancelled and, of the dead, expired). Ids count up by one: between `after` and an
--         `oldest` over `after` + 1 some have gone.
function reads.events(keys, args)
  local call, after = {prefix = keys[1] .. ':'}, check_whole(args[4], 'after', 0, HORIZON_MS)
  local count = check_whole(args[5], 'count', 1, TASKS_PER_CALL)
  local feed = call.prefix .. 'events:' .. args[3]
  if redis.call('EXISTS', feed) == 0 then return {1, 0} end
  local newest = newest_of(feed)
  local out = {newest - redis.call('XLEN', feed) + 1, newest}
  for _, entry in ipairs(redis.call('XRANGE', feed, string.format('(0-%.0f', after), '+', 'COUNT', count)) do
    local fields = entry[2]
    out[#out + 1] = {tonumber(entry[1]:match('%d+$')), fields[2], fields[4], fields[6], tonumber(fields[8]), fields[10]}
  end
  return out
end
