-- The verbs of the outbox (39_links.lua): how servers deliver its records, and what they say has become of each.
--
-- A server takes records that are due, some of each tenant's, and tenants take turns. They are due again a little
-- later, so that another server delivers them if it dies. It enqueues each under the link's id in its queue, and tells
-- here what came of it. Told twice, or by two servers, it is the same: the target knows the id, and a record that is
-- gone is gone.
--
-- Also what the handlers of a running task have enqueued by themselves: its run remembers it, so that a later attempt
-- does not enqueue it again when the target has long forgotten the id.

do

local LINKS_PER_CALL = 100
local PAGES_PER_TAKE = 5  -- of tenants, where those of the first have none that is due after all
local PARTS = 10  -- of a take, where so many tenants have links that are due: few links at once cost more each
local DIGEST_BYTES, DIGESTS_PER_RUN, RUNS_PER_READ = 8, 1000, 50
local FATES = {delivered = true, later = true, never = true}

-- A tenant's first links that are due, and then those that are held until a time which the clock went back from.
local function due_of(call, at, budget)
  local found = redis.call('ZRANGE', at, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, budget)
  local left, latest = budget - #found, '(' .. text(call.now + links.HELD_MS)
  if left == 0 then return found end
  for _, link in ipairs(redis.call('ZRANGE', at, latest, '+inf', 'BYSCORE', 'LIMIT', 0, left)) do
    found[#found + 1] = link
  end
  return found
end

-- Takes a tenant's first links that are due. The tenant goes behind the others that have such links.
local function take_of(call, name, budget, taken)
  local at, out = links.of(call, name), taken.out
  for _, link in ipairs(due_of(call, at, budget)) do
    if taken.bytes >= PAGE_BYTES then break end
    local packed = redis.call('HGET', key(call, 'outbox'), link)
    if packed then
      out[#out + 1], out[#out + 2], taken.bytes = link, packed, taken.bytes + #packed
      redis.call('ZADD', at, call.now + taken.hold_ms, link)
    else
      redis.call('ZREM', at, link)
    end
  end
  local next_due = links.next_due(call, name)
  if next_due then
    redis.call('ZADD', key(call, 'outbox_due'), math.max(next_due, call.now), name)
  else
    redis.call('ZREM', key(call, 'outbox_due'), name)
  end
end

-- take_links(keys, argv): the links that are due, to be delivered by the caller.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 how many (1..100)  4 hold_ms: after so long they are due again (1..60000)
--   out   per link: name, OUTBOX; fewer where their payloads are long, or a tenant has fewer than its part; none: none
--         is due, or of 500 tenants in a row none was (a tick says whether there are others). A tenant's oldest come
--         first.
--   flags allow-oom
function verbs.take_links(keys, args)
  local call, limit = calls.open(keys, args), check_whole(args[3], 'limit', 1, LINKS_PER_CALL)
  local taken = {out = {}, bytes = 0, hold_ms = check_whole(args[4], 'hold_ms', 1, links.HELD_MS)}
  local due = key(call, 'outbox_due')
  for _ = 1, PAGES_PER_TAKE do
    local names = redis.call('ZRANGE', due, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, limit)
    local part = math.max(1, math.floor(limit / math.max(1, math.min(#names, PARTS))))
    for _, name in ipairs(names) do
      local left = limit - #taken.out / 2
      if left == 0 or taken.bytes >= PAGE_BYTES then break end
      take_of(call, name, math.min(part, left), taken)
    end
    if #names == 0 or #taken.out > 0 then break end
  end
  if #taken.out > 0 then calls.close(call) end  -- so that it is known if the time goes back from then
  return taken.out
end

local function close_link(call, name, fate, delay_ms, error)
  local record = links.find(call, name)
  if not record or not redis.call('ZSCORE', links.of(call, record.tenant), name) then return false end
  local t = accounts.touch_named(call, record.tenant)
  if fate == 'delivered' then
    links.drop(call, t, name, record)
    return true
  end
  record.attempts = record.attempts + 1
  if fate == 'never' or links.is_over(call, record) then
    links.bury(call, t, name, record, error)
  else
    links.put(call, name, record, call.now + delay_ms)
    links.put_off(call, record.tenant)
  end
  return true
end

-- close_links(keys, argv): say what has become of links.
--   keys  1 prefix
--   argv  1 now  2 random_values  then per link (at most 100): name, "delivered" | "later" (try again) | "never",
--         delay_ms (of "later": up to 60000), error (of a dead letter: of "never", and of "later" when it was tried for
--         a day)
--   out   per link "ok" | "gone" (it is no record any more)
--   flags allow-oom
function verbs.close_links(keys, args)
  local call, outcomes, changed = calls.open(keys, args), {}, false
  if #args < 6 or #args % 4 ~= 2 or #args > 2 + 4 * LINKS_PER_CALL then refuse('bad_request', 'links') end
  for i = 3, #args, 4 do
    if not FATES[args[i + 1]] then refuse('bad_request', 'links') end
    check_whole(args[i + 2], 'delay_ms', 0, links.HELD_MS)
  end
  for i = 3, #args, 4 do
    local is_known = close_link(call, args[i], args[i + 1], tonumber(args[i + 2]), args[i + 3])
    outcomes[#outcomes + 1], changed = is_known and 'ok' or 'gone', changed or is_known
  end
  if changed then calls.close(call) end
  return outcomes
end

-- Whether a run remembers a digest.
local function has_made(run, digest)
  local at = 0
  repeat
    at = run.made:find(digest, at + 1, true)
  until not at or at % DIGEST_BYTES == 1
  return at ~= nil
end

-- Reads arguments that stand `width` for each digest, the task's id first and the digest last: returns the ids.
local function read_digests(args, width)
  local count, ids = (#args - 2) / width, {}
  if count < 1 or count % 1 ~= 0 or count > TASKS_PER_CALL then refuse('bad_request', 'digests') end
  for i = 1, count do
    ids[i] = args[3 + (i - 1) * width]
    if #args[2 + i * width] ~= DIGEST_BYTES then refuse('bad_request', 'digests') end
  end
  return ids
end

-- The runs of tasks, by id (false: there is none), and of how many of the ids: until they are long enough for one call.
local function read_runs(call, ids)
  local runs, seen, bytes = {}, 0, 0
  while seen < #ids and bytes < PAGE_BYTES do
    local page = {}
    for i = seen + 1, math.min(seen + RUNS_PER_READ, #ids) do
      if runs[ids[i]] == nil then page[#page + 1], runs[ids[i]] = ids[i], false end
      seen = i
    end
    leases.read_runs(call, page)
    for _, id in ipairs(page) do
      runs[id] = leases.run_of(call, id) or false
      bytes = bytes + (runs[id] and #runs[id].made or 0)
    end
  end
  return runs, seen
end

-- made_by(keys, argv): which tasks the handlers of leased tasks have enqueued, in this attempt or an earlier one.
--   keys  1 prefix
--   argv  1 now  2 random_values  then per task that was enqueued (at most 500): id and lease of the leased one, digest
--         (8 bytes)
--   out   per digest 1 | 0 | -1 (that lease is not open); fewer where the tasks remember too much for one call
function verbs.made_by(keys, args)
  local call, ids, out = calls.ask(keys, args), read_digests(args, 3), {}
  local runs, count = read_runs(call, ids)
  for i = 1, count do
    local run = runs[ids[i]]
    local is_open = run and run.lease == tonumber(args[1 + 3 * i]) and leases.is_leased(run.state)
    out[i] = is_open and (has_made(run, args[2 + 3 * i]) and 1 or 0) or -1
  end
  return out
end

-- note_made(keys, argv): remember with tasks what their handlers have enqueued, until they are done or dead: the first
-- 1,000 of each, which count among the tenant's bytes. Also where the lease was lost meanwhile: the next attempt must
-- not enqueue it again.
--   keys  1 prefix
--   argv  1 now  2 random_values  then per task that was enqueued (at most 500): id of the leased one, digest (8 bytes)
--   out   per digest "ok" | "gone" (the leased one was done or dead meanwhile, or never leased); fewer: as of made_by
--   flags allow-oom
function verbs.note_made(keys, args)
  local call, ids, changed, out = calls.open(keys, args), read_digests(args, 2), {}, {}
  local runs, count = read_runs(call, ids)
  for i = 1, count do
    local id, run, digest = ids[i], runs[ids[i]], args[2 + 2 * i]
    out[i] = run and 'ok' or 'gone'
    if run and #run.made < DIGEST_BYTES * DIGESTS_PER_RUN and not has_made(run, digest) then
      run.made, run.bytes, changed[id] = run.made .. digest, run.bytes + DIGEST_BYTES, run
      accounts.add_bytes(call, accounts.touch(call, accounts.at(call, run.tag)), DIGEST_BYTES)
    end
  end
  for id, run in pairs(changed) do leases.set_run(call, id, run) end
  if next(changed) then
    leases.write(call)
    calls.close(call)
  end
  return out
end

end
