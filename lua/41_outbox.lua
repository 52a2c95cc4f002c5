-- The verbs of the outbox (39_links.lua): how servers deliver its records, and what they say has become of each.
--
-- A server takes records that are due, an equal part of each tenant's: they are due again a little later, so that
-- another one delivers them if it dies. It enqueues each under the link's id in its queue, and tells here what came of
-- it. Told twice, or by two servers, it is the same: the target knows the id, and a record that is gone is gone.
--
-- Also what the handlers of a running task have enqueued by themselves: its run remembers it, so that a later attempt
-- does not enqueue it again when the target has long forgotten the id.

do

local LINKS_PER_CALL, TENANTS_PER_TAKE = 100, 50
local DIGEST_BYTES, DIGESTS_PER_RUN = 8, 1000
local FATES = {delivered = true, later = true, never = true}

-- Takes a tenant's first links that are due. The tenant goes behind the others that have such links.
local function take_of(call, name, budget, taken)
  local at, out = links.of(call, name), taken.out
  for _, link in ipairs(redis.call('ZRANGE', at, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, budget)) do
    if taken.bytes >= PAGE_BYTES then break end
    local packed = redis.call('HGET', key(call, 'outbox'), link)
    if packed then
      out[#out + 1], out[#out + 2], taken.bytes = link, packed, taken.bytes + #packed
      redis.call('ZADD', at, call.now + taken.hold_ms, link)
    else
      redis.call('ZREM', at, link)
    end
  end
  local next_due = redis.call('ZRANGE', at, 0, 0, 'WITHSCORES')[2]
  if next_due then
    redis.call('ZADD', key(call, 'outbox_due'), math.max(tonumber(next_due), call.now), name)
  else
    redis.call('ZREM', key(call, 'outbox_due'), name)
  end
end

-- take_links(keys, argv): the links that are due, to be delivered by the caller.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 how many (1..100)  4 hold_ms: after so long they are due again
--   out   per link: name, OUTBOX; fewer where their payloads are long, or a tenant has fewer than its part; none: none
--         is due. A tenant's oldest come first.
--   flags allow-oom
function verbs.take_links(keys, args)
  local call, limit = calls.open(keys, args), check_whole(args[3], 'limit', 1, LINKS_PER_CALL)
  local taken = {out = {}, bytes = 0, hold_ms = check_whole(args[4], 'hold_ms', 1, HORIZON_MS)}
  local due = key(call, 'outbox_due')
  while #taken.out == 0 do
    local names = redis.call('ZRANGE', due, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, math.min(limit, TENANTS_PER_TAKE))
    local budget = math.floor(limit / math.max(#names, 1))
    for _, name in ipairs(names) do
      if taken.bytes >= PAGE_BYTES then break end
      take_of(call, name, budget, taken)
    end
    if #names == 0 then break end
  end
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
  end
  return true
end

-- close_links(keys, argv): say what has become of links.
--   keys  1 prefix
--   argv  1 now  2 random_values  then per link (at most 100): name, "delivered" | "later" (try again) | "never",
--         delay_ms (of "later"), error (of a dead letter: of "never", and of "later" when it was tried for a day)
--   out   per link "ok" | "gone" (it is no record any more)
--   flags allow-oom
function verbs.close_links(keys, args)
  local call, outcomes, changed = calls.open(keys, args), {}, false
  if #args < 6 or #args % 4 ~= 2 or #args > 2 + 4 * LINKS_PER_CALL then refuse('bad_request', 'links') end
  for i = 3, #args, 4 do
    if not FATES[args[i + 1]] then refuse('bad_request', 'links') end
    check_whole(args[i + 2], 'delay_ms', 0, HORIZON_MS)
  end
  for i = 3, #args, 4 do
    local is_known = close_link(call, args[i], args[i + 1], tonumber(args[i + 2]), args[i + 3])
    outcomes[#outcomes + 1], changed = is_known and 'ok' or 'gone', changed or is_known
  end
  if changed then calls.close(call) end
  return outcomes
end

-- The run of a task whose lease of this number is open; nil if it is not.
local function open_run(call, id, number)
  leases.read_runs(call, {id})
  local run = leases.run_of(call, id)
  return run and run.lease == number and leases.is_leased(run.state) and run or nil
end

-- The digests that a run remembers, as a set.
local function made_of(run)
  local made = {}
  for at = 1, #run.made, DIGEST_BYTES do made[run.made:sub(at, at + DIGEST_BYTES - 1)] = true end
  return made
end

local function check_digests(args)
  if #args < 5 or #args > 4 + TASKS_PER_CALL then refuse('bad_request', 'digests') end
  for i = 5, #args do
    if #args[i] ~= DIGEST_BYTES then refuse('bad_request', 'digests') end
  end
end

-- made_by(keys, argv): which tasks the handlers of a leased task have enqueued, in this attempt or an earlier one.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 id  4 lease  then digests of tasks (8 bytes each)
--   out   "ok", then per digest 1 | 0; or "stale" (that lease is not open)
function verbs.made_by(keys, args)
  local call = calls.ask(keys, args)
  check_digests(args)
  local run, out = open_run(call, args[3], tonumber(args[4])), {'ok'}
  if not run then return {'stale'} end
  local made = made_of(run)
  for i = 5, #args do out[i - 3] = made[args[i]] and 1 or 0 end
  return out
end

-- note_made(keys, argv): remember with a task what its handlers have enqueued, until it is done or dead: the first
-- 1,000, which count among its tenant's bytes. Also where its lease was lost meanwhile: the next attempt must not
-- enqueue it again.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 id  4 lease (of the attempt; it does not matter)  then digests of tasks (8 bytes
--         each)
--   out   "ok" | "gone" (it was done or dead meanwhile, or never leased)
--   flags allow-oom
function verbs.note_made(keys, args)
  local call = calls.open(keys, args)
  check_digests(args)
  leases.read_runs(call, {args[3]})
  local run = leases.run_of(call, args[3])
  if not run then return 'gone' end
  local made, added = made_of(run), {}
  for i = 5, #args do
    local has_room = #run.made / DIGEST_BYTES + #added < DIGESTS_PER_RUN
    if has_room and not made[args[i]] then added[#added + 1], made[args[i]] = args[i], true end
  end
  if #added > 0 then
    run.made, run.bytes = run.made .. table.concat(added), run.bytes + DIGEST_BYTES * #added
    leases.set_run(call, args[3], run)
    accounts.add_bytes(call, accounts.touch(call, accounts.at(call, run.tag)), DIGEST_BYTES * #added)
    leases.write(call)
    calls.close(call)
  end
  return 'ok'
end

end
