-- needs: accounts, calls, limits, task_options
--
-- Feeds: events about tasks (and batches) that asked for them.
--
-- `events:<tenant>` is a stream with the ids 0-1, 0-2, ... Only the oldest events are deleted, so its length and its
-- last id say which ones are gone.

local EVENT_BYTES = 256  -- kept of an event's detail
local GOING = 10         -- old events deleted with each new one while the feed is too long

-- Adds an event to a tenant's feed, and publishes that there are new ones.
function feeds.tell(call, account, event, id, attempt, detail)
  local name, books = account.name, accounts.books_of(call, accounts.touch(call, account))
  local most = math.min(call.queue.events_keep, limits.events(call, account))
  local length = math.max(most, books.events + 1 - GOING)
  redis.call('XADD', call.prefix .. 'events:' .. name, 'MAXLEN', '=', length, '0-*', 'event', event,
    'id', id, 'at', text(call.now), 'attempt', attempt, 'detail', detail:sub(1, EVENT_BYTES))
  books.events = math.min(books.events + 1, length)
  calls.announce(call, 'event ' .. name)
end

-- Adds an event about a task if it asked for events.
function feeds.tell_of(call, account, id, event, attempt, detail)
  if task_options.of(call, id).events > 0 then feeds.tell(call, account, event, id, attempt, detail) end
end
