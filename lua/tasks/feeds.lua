-- needs: accounts, calls, limits, task_options
--
-- Feeds: what became of those tasks (and batches) that asked for it to be told.
--
-- `events:<tenant>` is a stream whose ids count 0-1, 0-2, ... and none is ever taken out but the oldest, so its length
-- and its last id say what has gone.

local EVENT_BYTES = 256  -- of what an event says beside its kind, what is kept
local GOING = 10         -- old events that go with each new one, where fewer are to be kept than there are

-- Puts an event into a tenant's feed, and says that there are new ones.
function feeds.tell(call, account, event, id, attempt, detail)
  local name, books = account.name, accounts.books_of(call, accounts.touch(call, account))
  local most = math.min(call.queue.events_keep, limits.events(call, account))
  local length = math.max(most, books.events + 1 - GOING)
  redis.call('XADD', call.prefix .. 'events:' .. name, 'MAXLEN', '=', length, '0-*', 'event', event,
    'id', id, 'at', text(call.now), 'attempt', attempt, 'detail', detail:sub(1, EVENT_BYTES))
  books.events = math.min(books.events + 1, length)
  calls.announce(call, 'event ' .. name)
end

-- Tells what has become of a task, if it asked for that.
function feeds.tell_of(call, account, id, event, attempt, detail)
  if task_options.of(call, id).events > 0 then feeds.tell(call, account, event, id, attempt, detail) end
end
