-- Feeds: what became of those tasks (and batches) that asked for it to be told.
--
-- `events:<tenant>` is a stream whose ids count 0-1, 0-2, ... and none is ever taken out but the oldest, so its length
-- and its last id say what has gone.

local feeds = {}  -- what other sections call
do

local EVENT_BYTES = 256  -- of what an event says beside its kind, what is kept
local GOING = 10         -- old events that go with each new one, where fewer are to be kept than there are

-- Puts an event into a tenant's feed, and says once in a call that there are new ones.
function feeds.tell(call, name, event, id, attempt, detail)
  local feed = key(call, 'events:' .. name)
  local kept = math.max(call.queue.events_keep, redis.call('XLEN', feed) + 1 - GOING)
  redis.call('XADD', feed, 'MAXLEN', '=', kept, '0-*', 'event', event,
    'id', id, 'at', text(call.now), 'attempt', attempt, 'detail', detail:sub(1, EVENT_BYTES))
  local told = calls.table_of(call, 'told')
  if told[name] then return end
  told[name] = true
  calls.announce(call, 'event ' .. name)
end

-- Tells what has become of a task, if it asked for that.
function feeds.tell_of(call, t, id, event, attempt, detail)
  if task_options.of(call, id).events > 0 then feeds.tell(call, t.name, event, id, attempt, detail) end
end

end
