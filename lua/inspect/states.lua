-- needs: accounts, calls, limits, records, seats, standing, takes, task_options
--
-- The present states of queues, tenants and tasks.

-- queue_state(keys, argv): the queue's counts and settings, in O(1).
--   out   name, value, name, value, ... (numbers as text)
function reads.queue_state(keys, _)
  local queue, out = calls.load_queue(keys[1]), {}
  for name in pairs(DEFAULTS) do queue[name] = queue[name] end
  for name, value in pairs(queue) do
    if type(value) == 'number' then
      out[#out + 1] = name
      out[#out + 1] = text(value)
    end
  end
  return out
end

local function tenant_line(call, account)
  local details, books, line = accounts.details_of(call, account), accounts.books_of(call, account), account.name
  for _, value in ipairs({account.weight, account.ready, details.pending, details.delayed, account.leased,
    details.dead, books.done, accounts.delivered_to(call, account), seats.entitled_to(call, account),
    account.slot ~= OUT and 1 or 0, details.blocked, details.limited, limits.kept(call, account)}) do
    line = line .. ' ' .. text(value)
  end
  return line
end

-- tenants(keys, argv): a page of the tenants, in no order; or those of the named ones that exist.
--   argv  3 cursor ("0" to begin)  4 count (1..500)  then names (if any: cursor and count are not used)
--   out   next cursor ("0" at the end), then per tenant: name, weight (thousandths), ready, pending, delayed, leased,
--         dead, done, delivered, entitled (since the tenant was first seen, or `share` was changed; ms or tasks),
--         is_eligible, blocked (1 paused, 2 closed, 4 out of tokens, added up), limited (1: it has its own limits),
--         bytes (all that it keeps)
function reads.tenants(keys, args)
  local call, details = calls.ask(keys, args), nil
  local next_cursor, names, count = '0', {unpack(args, 5)}, check_whole(args[4], 'count', 1, TASKS_PER_CALL)
  if #names > 0 then
    details = redis.call('HMGET', call.prefix .. 'tenants', unpack(names))
  else
    local page
    next_cursor, page = scan('HSCAN', call.prefix .. 'tenants', args[3], count)
    details = {}
    for i = 1, #page, 2 do names[#names + 1], details[#details + 1] = page[i], page[i + 1] end
  end
  local out = {next_cursor}
  for _, account in ipairs(accounts.of_details(call, names, details)) do out[#out + 1] = tenant_line(call, account) end
  return out
end

-- tasks(keys, argv): the states of tasks.
--   argv  ids (at most 500)
--   out   per id: {state, tenant, attempt, at_ms, detail, error, lost_leases, lease}; state is ready (at: since when,
--         0: not known), pending (without a batch slot), delayed (at: start), leased (at: lease deadline, detail: its
--         claim, lease: its number), dead (at: death, detail: reason), done, cancelled or dead without a letter (not
--         long ago; the other fields are empty), or unknown
function reads.tasks(keys, args)
  return standing.of(calls.ask(keys, args), {unpack(args, 3)})
end

-- results(keys, argv): the kept results of tasks.
--   argv  ids (at most 500)
--   out   per id: the result as it came; empty if its tenant's limit had no room for it; or false. Fewer than asked for
--         where the results are long.
function reads.results(keys, args)
  local call, out, bytes = calls.ask(keys, args), {}, 0
  for i, id in ipairs(ids_in(args, 3, TASKS_PER_CALL)) do
    out[i] = (task_options.result_of(call, id))
    bytes = bytes + #(out[i] or '')
    if bytes >= PAGE_BYTES then break end
  end
  return out
end

-- peek(keys, argv): a tenant's next ready tasks, in the order in which they will be served.
--   argv  3 tenant  4 count (1..500)  5 "brief" to leave out long payloads
--   out   per task: id, record; fewer than `count` also where the records are long
function reads.peek(keys, args)
  local call, count = calls.ask(keys, args), check_whole(args[4], 'count', 1, TASKS_PER_CALL)
  local ids, out, bytes = takes.ids(call, accounts.named(call, args[3]), count), {}, 0
  local found = #ids > 0 and records.of(call, ids) or {}
  for i, record in ipairs(found) do
    if record and args[5] ~= 'brief' then record = records.whole(call, ids[i], record) end
    out[2 * i - 1], out[2 * i], bytes = ids[i], record, bytes + #(record or '')
    if bytes >= PAGE_BYTES then break end
  end
  return out
end
