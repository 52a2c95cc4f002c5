-- Webhooks: the URLs that tasks of a queue are posted to, registered while it runs; and the copies of tasks for them.
--
-- Workers that post tasks read the registrations each second (fairq/webhook); the queue itself only keeps them. A
-- webhook is for tasks of one name, or (empty) for all.
--
-- Fan-out. A task that is enqueued while webhooks with fan-out take its name is copied, one for each of them, in the
-- same call and for the same tenant. Each copy is a task like any other, with the id `<id>+<webhook>`; its record says
-- which webhook it is for. The task itself is for a webhook without fan-out, if one takes its name; else it serves as
-- the copy for the first of the others. A copy holds no dedupe key, so a task that is a duplicate is not copied either.
-- Callback tasks of batches are not copied, so that a settlement enqueues no more than two tasks for each batch.
--
-- `queue.fan_outs` counts webhooks with fan-out: a queue without any reads nothing more when tasks are enqueued.

local WEBHOOKS_PER_QUEUE, FAN_OUTS_PER_QUEUE = 64, 15
local NONE = {}

local function load_all(call)
  if call.webhooks then return call.webhooks end
  local known, flat = calls.table_of(call, 'webhooks'), redis.call('HGETALL', key(call, 'webhooks'))
  for i = 1, #flat, 2 do known[flat[i]] = WEBHOOK.unpack(flat[i + 1]) end
  return known
end

-- For which webhook tasks of a name are (empty: whichever takes them then), and those for which they are copied.
function webhooks.takers_of(call, name)
  if call.queue.fan_outs == 0 then return '', NONE end
  local found, is_taken = {}, false
  for id, w in pairs(load_all(call)) do
    if w.name == '' or w.name == name then
      if w.fan_out == 1 then found[#found + 1] = id else is_taken = true end
    end
  end
  table.sort(found, precedes)
  return not is_taken and table.remove(found, 1) or '', found
end

-- How many webhooks with fan-out there are.
function webhooks.count_fan_outs(call)
  local count = 0
  for _, w in pairs(load_all(call)) do count = count + w.fan_out end
  return count
end

local function check_webhook(id)
  if not id:find('^%x%x%x%x%x%x%x%x$') then refuse('bad_request', 'id') end
  return id
end

local function save(call, id, w)
  redis.call('HSET', key(call, 'webhooks'), id, WEBHOOK.pack(w))
  calls.close(call)
end

-- add_webhook(keys, argv): register a webhook, or change the one of that id; the same again changes nothing.
--   argv  3 id (eight hexadecimal digits)  4 url  5 name of the tasks (empty: all)  6 fan_out (0, 1)  7 secrets (empty:
--         the worker's)
--   out   "created" | "changed" | "same". What is paused stays so.
function writes.add_webhook(keys, args)
  local call, id, url, name = calls.open_made(keys, args), check_webhook(args[3]), args[4], args[5]
  local fan_out, secrets = check_whole(args[6], 'fan_out', 0, 1), args[7]
  if #url == 0 or #url > 65535 then refuse('bad_request', 'url') end
  if #name > 255 or name:find('%c') then refuse('bad_request', 'name') end
  if #secrets > 65535 then refuse('bad_request', 'secrets') end
  local known = load_all(call)
  local w, count = known[id], redis.call('HLEN', key(call, 'webhooks'))
  if not w and count >= WEBHOOKS_PER_QUEUE then refuse('too_large', 'url') end
  local fan_outs = call.queue.fan_outs + fan_out - (w and w.fan_out or 0)
  if fan_outs > FAN_OUTS_PER_QUEUE and fan_outs > call.queue.fan_outs then refuse('too_large', 'fan_out') end
  local outcome = w and 'changed' or 'created'
  if w and w.url == url and w.name == name and w.fan_out == fan_out and w.secrets == secrets then return 'same' end
  call.queue.fan_outs = fan_outs
  save(call, id, {fan_out = fan_out, paused = w and w.paused or 0, created_at = w and w.created_at or call.now,
    name = name, url = url, secrets = secrets})
  return outcome
end

-- remove_webhook(keys, argv): forget a webhook; tasks that are for it stay.
--   argv  3 id
--   out   "ok" | "gone" (there is none)
function drains.remove_webhook(keys, args)
  local call, id = calls.open(keys, args), check_webhook(args[3])
  local w = load_all(call)[id]
  if not w then return 'gone' end
  redis.call('HDEL', key(call, 'webhooks'), id)
  call.queue.fan_outs = call.queue.fan_outs - w.fan_out
  calls.close(call)
  return 'ok'
end

-- pause_webhook(keys, argv): say whether a webhook is paused, for the workers that post tasks.
--   argv  3 id  4 paused (0, 1)
--   out   whether it was until now: 0 or 1; -1: there is none
function drains.pause_webhook(keys, args)
  local call, id, paused = calls.open(keys, args), check_webhook(args[3]), check_whole(args[4], 'paused', 0, 1)
  local w = load_all(call)[id]
  if not w then return -1 end
  local previous = w.paused
  if previous ~= paused then
    w.paused = paused
    save(call, id, w)
  end
  return previous
end

-- webhooks(keys, argv): all webhooks of the queue.
--   out   per webhook: id, WEBHOOK; in no order
function reads.webhooks(keys, args)
  local call = calls.ask(keys, args)
  return redis.call('HGETALL', key(call, 'webhooks'))
end
