-- What can be asked without changing anything. All of these are `no-writes`: they run on replicas and on a full store.

-- depth(keys, argv): the queue's counts and settings, in O(1).
--   keys  1 prefix
--   argv  1 now  2 dice
--   out   name, value, name, value, ... (numbers as text)
function verbs.depth(keys, _)
  local out = {}
  for name, value in pairs(load_queue(keys[1])) do
    if name ~= 'classes' then
      out[#out + 1] = name
      out[#out + 1] = text(value)
    end
  end
  return out
end

-- tenants(keys, argv): a page of the tenants, in no order; or the named ones.
--   keys  1 prefix
--   argv  1 now  2 dice  3 cursor ("0" to begin)  4 count (1..500)  then names (if any: cursor and count are not used)
--   out   next cursor ("0" at the end), then per tenant: name, weight (thousandths), ready, held, delayed, leased,
--         dead, done, delivered, entitled (since the tenant was first seen; ms or tasks), is_eligible, barred (1
--         paused, 2 closed, 4 out of tokens, added up), limited (1: there are limits of its own), bytes (of tasks that
--         wait)
function verbs.tenants(keys, args)
  local call = open(keys, args)
  local next_cursor, names, count = '0', {}, check_whole(args[4], 'count', 1, TASKS_PER_CALL)
  for i = 5, #args do names[#names + 1] = args[i] end
  if #names > 0 then
    read_tenants(call, names)
  else
    local page = redis.call('HSCAN', key(call, 'tenants'), args[3], 'COUNT', count)
    next_cursor = page[1]
    for i = 1, #page[2], 2 do
      names[#names + 1] = page[2][i]
      call.packed[page[2][i]] = page[2][i + 1]
    end
  end
  local out = {next_cursor}
  for _, name in ipairs(names) do
    local t = tenant(call, name)
    if t.counted == 1 then accrue(call, t) end
    if call.queue.share == SHARE_TIME then t.delivered = t.delivered + age_of(call, t) end
    for _, value in ipairs({t.weight, t.ready, t.held, t.delayed, t.leased, t.dead, t.done, t.delivered, t.entitled,
      t.slot ~= OUT and 1 or 0, t.barred, t.limited, t.bytes}) do
      name = name .. ' ' .. text(value)
    end
    out[#out + 1] = name
  end
  return out
end

local function state_of(call, id, record, run, death)
  if death then
    local reason, attempts, _, died_at, tenant, message = struct.unpack(DEATH_FORMAT, death)
    return {'dead', tenant, attempts, text(died_at), REASONS[reason], message, 0}
  end
  if not record then
    local settled = redis.call('HGET', done_key(call, 0), id) or redis.call('HGET', done_key(call, 1), id)
    local state = not settled and 'unknown' or settled:find('^c') and 'cancelled' or 'done'
    return {state, '', 0, '0', '', '', 0}
  end
  local tenant = read_header(record)
  local attempt, message = 0, ''
  if run then attempt, message = run.attempt, run.error end
  if run and is_leased(run.state) then
    return {'leased', tenant, attempt, redis.call('ZSCORE', key(call, 'leases'), id), run.worker, message, run.lease}
  end
  if extras_of(call, id).batch ~= '' and redis.call('ZSCORE', held_key(call, id), id) then
    return {'held', tenant, attempt, '0', '', message, 0}
  end
  local start_at = redis.call('ZSCORE', key(call, 'delayed:' .. tenant), id)
  return {start_at and 'delayed' or 'ready', tenant, attempt, start_at or '0', '', message, 0}
end

-- tasks(keys, argv): what is known of tasks.
--   keys  1 prefix
--   argv  1 now  2 dice  then ids (at most 500)
--   out   per id: {state, tenant, attempt, at_ms, detail, error, lease}; state is ready, held (by its batch's cap),
--         delayed (at: start), leased (at: lease deadline, detail: worker, lease: its number), dead (at: death, detail:
--         reason), done or cancelled (not long ago; no attempt is told), or unknown
function verbs.tasks(keys, args)
  local call, ids, out = open(keys, args), {}, {}
  for i = 3, #args do ids[#ids + 1] = args[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'ids') end
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local runs = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  local deaths = redis.call('HMGET', key(call, 'dead'), unpack(ids))
  for i, id in ipairs(ids) do
    out[i] = state_of(call, id, records[i], runs[i] and load_run(runs[i]), deaths[i])
  end
  return out
end

-- results(keys, argv): the results that are kept of tasks that were done.
--   keys  1 prefix
--   argv  1 now  2 dice  then ids (at most 500)
--   out   per id: the result as it came, or false; false too while another task has the id
function verbs.results(keys, args)
  local call, out = open(keys, args), {}
  for i, id in ipairs(ids_in(args, 3)) do
    local kept = redis.call('GET', key(call, 'result:' .. id))
    local until_ms, result
    if kept then until_ms, result = kept:match('^(%d+) (.*)$') end
    local is_kept = result and tonumber(until_ms) > call.now and redis.call('HEXISTS', key(call, 'tasks'), id) == 0
    out[i] = is_kept and result or false
  end
  return out
end

-- The live ones among the first entries of a list.
local function without_voids(call, t, level, entries)
  if t.voids == 0 or #entries == 0 then return entries end
  local fields, left, ids = {}, {}, {}
  for i, id in ipairs(entries) do fields[i] = void_field(id, level) end
  for i, count in ipairs(redis.call('HMGET', key(call, 'void:' .. t.name), unpack(fields))) do
    left[entries[i]] = tonumber(count or 0)
  end
  for _, id in ipairs(entries) do
    if left[id] == 0 then ids[#ids + 1] = id else left[id] = left[id] - 1 end
  end
  return ids
end

-- peek(keys, argv): a tenant's next ready tasks, in the order in which they will be served.
--   keys  1 prefix
--   argv  1 now  2 dice  3 tenant  4 count (1..500)
--   out   per task: id, record; fewer than `count` also where the records are long
function verbs.peek(keys, args)
  local call = {prefix = keys[1], queue = load_queue(keys[1]), packed = {}, tenants = {}}
  local count = check_whole(args[4], 'count', 1, TASKS_PER_CALL)
  check_tenant(args[3])
  local t, ids, out, bytes = tenant(call, args[3]), {}, {}, 0
  for _, level in ipairs(levels_of(call, t)) do
    local entries = redis.call('LRANGE', ready_key(call, t, level), 0, count + math.min(t.voids, VOIDS_PER_CALL) - 1)
    for _, id in ipairs(without_voids(call, t, level, entries)) do
      if #ids < count then ids[#ids + 1] = id end
    end
  end
  for i, id in ipairs(ids) do
    local record = redis.call('HGET', key(call, 'tasks'), id)
    out[2 * i - 1], out[2 * i], bytes = id, record, bytes + #record
    if bytes >= PAGE_BYTES then break end
  end
  return out
end
