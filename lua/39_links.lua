-- Links: tasks that an acknowledgement enqueues, in the same call, for the tenant of the task that it ends.
--
-- A link to the same queue becomes a task at once, if it can. All others, to other queues and those that the queue
-- cannot take now, become records of the *outbox*: the hash `outbox`, and in the tenant's `links:<tenant>` when servers
-- shall deliver each (41_outbox.lua). As with delayed tasks, `outbox_due` has each tenant's first such time, so that
-- tenants take turns. A record's name is made from the link's queue and id, so the same link is there once.
--
-- What cannot be delivered becomes a dead letter of this queue, under the record's name and with the reason
-- `undelivered`. Its payload moves to the letter; what is left of the record is the link's address, by which the letter
-- can be replayed: it is a record of the outbox again, and due at once.
--
-- `queue.links` and `details.links` count records that are due some time, not addresses.

local links = {}  -- what other sections call
do

links.HELD_MS = 60000           -- for how long a link that was taken, or put off, waits at most
local LINKS_PER_ACK = 16
local LINKS_PER_TENANT = 10000  -- records of one tenant; what comes then is undelivered at once
local GIVE_UP_MS = 86400000     -- after which a link that could not be delivered so far is undelivered

-- Whether a task of these options asks for what no link may.
local function check_asked(terms)
  if terms.asked.batch ~= '' then refuse('bad_request', 'batch') end
  return terms
end

-- Reads the links of an acknowledgement, and checks all of them: before the first write.
function links.read(call, packed)
  local found, position = {}, 1
  while position <= #packed do
    if #found == LINKS_PER_ACK then refuse('too_large', 'links') end
    local done, link, after = pcall(LINK.unpack, packed, position)
    if not done or #packed < after + link.size - 1 then refuse('bad_request', 'links') end
    check_id(link.id, ID_BYTES)
    link.terms = check_asked(arrivals.read_options(call, link.options))
    link.payload, position = packed:sub(after, after + link.size - 1), after + link.size
    found[#found + 1] = link
  end
  if #found == 0 then refuse('bad_request', 'links') end
  return found
end

-- The options with times that count from now as moments: a link may be delivered later.
local function with_moments(link)
  if link.options == '' then return '' end
  local o, terms = OPTIONS.unpack(link.options), link.terms
  o.delay, o.expires_in, o.expires_after_start = 0, 0, 0
  o.start_at, o.expires_at = terms.start_at, terms.expires_at
  return OPTIONS.pack(o)
end

function links.count(call, t, more)
  local d = accounts.details_of(call, t)
  d.links, call.queue.links = d.links + more, call.queue.links + more
end

-- What a record, or an address, counts among its tenant's bytes.
function links.bytes_of(name, record)
  return accounts.bytes_of(name, #record.payload)
end

function links.find(call, name)
  local packed = redis.call('HGET', key(call, 'outbox'), name)
  return packed and OUTBOX.unpack(packed) or nil
end

-- The set of a tenant's links, by when they are due.
function links.of(call, name)
  return key(call, 'links:' .. name)
end

-- Keeps a record, which is due at that time.
function links.put(call, name, record, due_at)
  redis.call('HSET', key(call, 'outbox'), name, OUTBOX.pack(record))
  redis.call('ZADD', links.of(call, record.tenant), due_at, name)
  redis.call('ZADD', key(call, 'outbox_due'), 'LT', due_at, record.tenant)
end

-- When a tenant's first link is due (nil: it has none): now, if one seems to be held for longer than any is. That one
-- was held until then when the store's clock was ahead.
function links.next_due(call, name)
  local last = redis.call('ZRANGE', links.of(call, name), 0, 0, 'REV', 'WITHSCORES')[2]
  if not last then return nil end
  if tonumber(last) > call.now + links.HELD_MS then return call.now end
  return tonumber(redis.call('ZRANGE', links.of(call, name), 0, 0, 'WITHSCORES')[2])
end

-- Has a tenant's turn wait until its first link is due; one that is due keeps its turn.
function links.put_off(call, name)
  local due_at = links.next_due(call, name)
  if not due_at then
    redis.call('ZREM', key(call, 'outbox_due'), name)
  elseif due_at > call.now then
    redis.call('ZADD', key(call, 'outbox_due'), due_at, name)
  end
end

-- Looks anew for the first links of these tenants: the queue's time may have gone back.
function links.watch(call, names)
  if call.queue.links == 0 then return end
  for _, name in ipairs(names) do
    local due_at = links.next_due(call, name)
    if due_at then redis.call('ZADD', key(call, 'outbox_due'), 'LT', due_at, name) end
  end
end

-- Removes a link from the times at which its tenant's links are due.
local function take_out(call, t, name)
  redis.call('ZREM', links.of(call, t.name), name)
  links.put_off(call, t.name)
  links.count(call, t, -1)
end

-- Makes a dead letter of a record that will not be delivered.
function links.bury(call, t, name, record, error)
  local terms, payload = arrivals.plain_terms(call), record.payload
  local packed, is_large, bytes = records.make(call, t.name, name, payload, terms)
  redis.call('HSET', key(call, 'tasks'), name, packed)
  if is_large then redis.call('HSET', key(call, 'payloads'), name, payload) end
  record.payload = ''
  accounts.add_bytes(call, t, bytes - #payload)
  redis.call('HSET', key(call, 'outbox'), name, OUTBOX.pack(record))
  take_out(call, t, name)
  places.put_dead(call, t, name, UNDELIVERED, {attempt = record.attempts, lease = 0, error = error:sub(1, ERROR_BYTES)})
end

-- Forgets a record that was delivered.
function links.drop(call, t, name, record)
  redis.call('HDEL', key(call, 'outbox'), name)
  take_out(call, t, name)
  accounts.add_bytes(call, t, -links.bytes_of(name, record))
end

-- Whether it is time to give a record up, which was written then.
function links.is_over(call, record)
  return record.written_at + GIVE_UP_MS <= call.now
end

local function send(call, t, origin, link)
  local name = t.name .. '/link-' .. redis.sha1hex(link.queue .. '\n' .. link.id)
  if redis.call('HEXISTS', key(call, 'outbox'), name) == 1 then return end
  local record = {attempts = 0, written_at = call.now, origin = origin, tenant = t.name, queue = link.queue,
    id = link.id, options = with_moments(link), payload = link.payload}
  links.put(call, name, record, call.now)
  accounts.add_bytes(call, t, links.bytes_of(name, record))
  links.count(call, t, 1)
  if accounts.details_of(call, t).links > LINKS_PER_TENANT then
    links.bury(call, t, name, record, 'too many links of the tenant wait to be delivered')
  end
end

-- Stores a link to this queue; returns false if that cannot be done now, or not here.
local function admit(call, t, link)
  if link.queue ~= '' or call.queue.fan_outs > 0 or link.terms.replaces then return false end
  if redis.call('HEXISTS', key(call, 'tasks'), link.id) == 1 then return true end
  local new = arrivals.new(t.name)
  local outcome = arrivals.admit(call, new, link.id, link.payload, link.terms)
  if outcome ~= 'ok' then return outcome ~= 'expired' end
  if arrivals.exceeded(call, new) then return false end
  arrivals.store(call, new)
  return true
end

-- Takes over what the acknowledgement of the task `origin` links to.
function links.take_over(call, t, origin, found)
  for _, link in ipairs(found) do
    if not admit(call, t, link) then send(call, t, origin, link) end
  end
end

-- Puts a dead letter of a link back into the outbox.
function links.revive(call, name, death, record)
  local t, header, bytes = places.take_out_dead(call, name, death), records.read(record, name)
  local link, whole = links.find(call, name), records.whole(call, name, record)
  local _, position = HEADER.unpack(whole)
  records.drop(call, name, header)
  call.load = call.load + #whole
  accounts.add_bytes(call, t, (link and #whole - position + 1 or 0) - bytes)
  if not link then return end
  link.payload, link.attempts, link.written_at = whole:sub(position), 0, call.now
  links.put(call, name, link, call.now)
  links.count(call, t, 1)
end

end
