-- needs: arrivals, batch_ends, batches, calls, close, leases, settlements, task_options, waiting
--
-- The verbs on batches (tasks/batches.lua).

local MAX_RUNNING = 1000000
local BATCH_ID_BYTES = ID_BYTES - 26  -- a callback task's id ends in a word, at most `-complete`, `-`, and 16 digits
local CALLBACK_NAME_BYTES = 64  -- all fields that later versions add to a batch share 255 bytes

-- open_batch(keys, argv): open a batch; tasks are added by `enqueue`.
--   argv  3 tenant  4 id (1..229 bytes)  5 max_running (0: no limit)  then the payloads of its callback tasks (each may
--         be empty): 6 when the batch is complete  7 when it is complete and all its tasks were done  8 when its first
--         task is dead  9 1 for an event in its tenant's feed when it is complete, else 0  10, 11, 12 the names of the
--         callback tasks (each may be empty; all three may be left out)
--   out   "ok" | "duplicate" (the batch exists: unchanged). Refused with `quota_exceeded` where the tenant would
--         keep too much.
function writes.open_batch(keys, args)
  local call, max_running = calls.open_made(keys, args), check_whole(args[5], 'max_running', 0, MAX_RUNNING)
  check_tenant(args[3])
  check_id(args[4], BATCH_ID_BYTES)
  for i = 6, 8 do
    if #args[i] > 65535 then refuse('too_large', 'payload') end
    local name = args[i + 4] or ''
    if #name > CALLBACK_NAME_BYTES or name:find('%c') then refuse('bad_request', 'name') end
  end
  if batches.find(call, args[4]) then return 'duplicate' end
  local batch = BATCH.new{max_running = max_running, created_at = call.now, state = OPENED, tenant = args[3],
    on_complete = #args[6], on_success = #args[7], on_death = #args[8], events = args[9] == '1' and 1 or 0,
    complete_name = args[10], success_name = args[11], death_name = args[12], reserves = 1}
  batches.name_results(batch)
  arrivals.add_bytes(call, args[3], batches.bytes_of(args[4], batch))
  call.batches[args[4]] = batch
  for i, event in ipairs(CALLBACKS) do
    local payload = args[5 + i]
    if payload ~= '' then
      redis.call('HSET', call.prefix .. 'payloads', batches.callback_id(args[4], batch, event), payload)
    end
  end
  batch_ends.finish(call)
  close.call(call)
  return 'ok'
end

-- close_batch(keys, argv): no more tasks are added; the batch is complete when its tasks have ended.
--   argv  3 id  4 "cancel" to cancel its tasks: some now, the others by the next ticks (else empty, or left out)
--   out   the previous state: "open" | "closed" | "complete"
function drains.close_batch(keys, args)
  local call, is_cancelled = calls.open(keys, args), args[4] == 'cancel'
  local batch = batches.find(call, args[3]) or refuse('not_found', 'batch')
  local previous = batch.state
  if previous == OPENED or previous == CLOSED and is_cancelled then
    batch.state = CLOSED
    if is_cancelled then
      redis.call('ZADD', call.prefix .. 'cancelling', 'NX', call.now, args[3])
      waiting.cancel_members(call, CHANGES_PER_CALL)
    end
    settlements.close(call)
  end
  return BATCH_STATES[previous]
end

local function row_of(batch)
  return {BATCH_STATES[batch.state], batch.tenant, batch.max_running, batch.total, batch.running, batch.done,
    batch.dead, batch.cancelled, batch.expired, text(batch.created_at), text(batch.completed_at)}
end

-- batches(keys, argv): the states of batches.
--   argv  ids (at most 500)
--   out   per id: {state, tenant, max_running, total, running, done, dead, cancelled, expired (of the dead),
--         created_at_ms, completed_at_ms (or 0)}; or {} if it does not exist
function reads.batches(keys, args)
  local call, out = {prefix = keys[1] .. ':', batches = {}}, {}
  for i, id in ipairs(ids_in(args, 3, TASKS_PER_CALL)) do
    local batch = batches.find(call, id)
    out[i] = batch and row_of(batch) or {}
  end
  return out
end

-- list_batches(keys, argv): a page of the batches, in no order. A batch that stays throughout comes at least once.
--   argv  3 tenant (empty: all)  4 state (open, closed, complete; empty: any)  5 cursor ("0" to begin)  6 count
--         (1..500)
--   out   next cursor ("0" at the end), then per batch: id, row as in `batches`. About `count` batches; fewer, or none,
--         if few match of the 500 or so that the call looked at.
function reads.list_batches(keys, args)
  local call, cursor, out, looked = {prefix = keys[1] .. ':'}, args[5], {}, 0
  local count = check_whole(args[6], 'count', 1, TASKS_PER_CALL)
  repeat
    local page
    cursor, page = scan('HSCAN', call.prefix .. 'batches', cursor, count)
    looked = looked + count
    for i = 1, #page, 2 do
      local batch = BATCH.unpack(page[i + 1])
      if (args[3] == '' or args[3] == batch.tenant) and (args[4] == '' or args[4] == BATCH_STATES[batch.state]) then
        out[#out + 1], out[#out + 2] = page[i], row_of(batch)
      end
    end
  until cursor == '0' or #out >= 2 * count or looked >= TASKS_PER_CALL
  return {cursor, unpack(out)}
end

-- The batch of a callback task, by the task's id.
local function called_for(call, task)
  local id = task:match('^(.+)%-%l+%-%d+$')
  local batch = id and batches.find(call, id)
  for _, event in ipairs(CALLBACKS) do
    if batch and batches.callback_id(id, batch, event) == task then return id end
  end
  refuse('not_found', 'id')
end

-- batch_results(keys, argv): a page of the results that are kept of a batch's tasks, for one of its callback tasks.
--   argv  3 id of the callback task  4 its lease, which must be open  5 cursor ("0" to begin)
--   out   next cursor ("0" at the end), then per task that was done and asked for its result to be kept, in the order
--         in which they were added: id, result (as in `results`). At most 500; fewer where the results are long.
function reads.batch_results(keys, args)
  local call, number, out, bytes = calls.ask(keys, args), tonumber(args[4]), {'0'}, 0
  local run, cursor = redis.call('HGET', call.prefix .. 'runs', args[3]), check_whole(args[5], 'cursor', 0, 2 ^ 53)
  local lease = run and LEASE.unpack(run)
  if not (lease and lease.lease == number and leases.is_leased(lease.state)) then refuse('forbidden', 'lease') end
  local id = called_for(call, args[3])
  local named = redis.call('ZRANGE', batches.results_key(call, id), '(' .. text(cursor), '+inf', 'BYSCORE', 'LIMIT', 0,
    TASKS_PER_CALL + 1, 'WITHSCORES')
  for i = 1, #named, 2 do
    if i > 2 * TASKS_PER_CALL or bytes >= PAGE_BYTES then
      out[1] = named[i - 1]
      break
    end
    local until_ms, task = named[i]:match('^(%d+) (.*)$')
    local result, kept_until = task_options.result_of(call, task)
    if kept_until ~= tonumber(until_ms) then result = false end
    out[#out + 1], out[#out + 2] = task, result
    bytes = bytes + #(result or '')
  end
  return out
end
