-- needs: calls, close
--
-- Webhooks: the URLs that tasks of a queue are posted to, registered while it runs.
--
-- Workers that post tasks read the registrations each second (fairq/webhook), and copy tasks for webhooks with fan-out;
-- the queue itself only keeps them. A webhook is for tasks of one name, or (empty) for all.

local WEBHOOKS_PER_QUEUE, FAN_OUTS_PER_QUEUE = 64, 15

-- How many webhooks there are, and how many of them have fan-out.
local function count(call)
  local flat, fan_outs = redis.call('HGETALL', call.prefix .. 'webhooks'), 0
  for i = 2, #flat, 2 do fan_outs = fan_outs + WEBHOOK.unpack(flat[i]).fan_out end
  return #flat / 2, fan_outs
end

local function check_webhook(id)
  if not id:find('^%x%x%x%x%x%x%x%x$') then refuse('bad_request', 'id') end
  return id
end

local function save(call, id, webhook)
  redis.call('HSET', call.prefix .. 'webhooks', id, WEBHOOK.pack(webhook))
  close.call(call)
end

-- add_webhook(keys, argv): register a webhook, or change the one of that id; the same again changes nothing.
--   argv  3 id (eight hexadecimal digits)  4 url  5 name of the tasks (empty: all)  6 fan_out (0, 1)  7 secrets (empty:
--         the worker's)
--   out   "created" | "changed" | "same". A paused webhook stays paused.
function writes.add_webhook(keys, args)
  local call, id, url, name = calls.open_made(keys, args), check_webhook(args[3]), args[4], args[5]
  local fan_out, secrets = check_whole(args[6], 'fan_out', 0, 1), args[7]
  if #url == 0 or #url > 65535 then refuse('bad_request', 'url') end
  if #name > 255 or name:find('%c') then refuse('bad_request', 'name') end
  if #secrets > 65535 then refuse('bad_request', 'secrets') end
  local packed, webhooks, fan_outs = redis.call('HGET', call.prefix .. 'webhooks', id), count(call)
  if not packed and webhooks >= WEBHOOKS_PER_QUEUE then refuse('too_large', 'url') end
  local webhook = packed and WEBHOOK.unpack(packed) or WEBHOOK.new{created_at = call.now}
  if fan_out > webhook.fan_out and fan_outs >= FAN_OUTS_PER_QUEUE then refuse('too_large', 'fan_out') end
  webhook.url, webhook.name, webhook.fan_out, webhook.secrets = url, name, fan_out, secrets
  if WEBHOOK.pack(webhook) == packed then return 'same' end
  save(call, id, webhook)
  return packed and 'changed' or 'created'
end

-- remove_webhook(keys, argv): forget a webhook; its tasks stay.
--   argv  3 id
--   out   "ok" | "gone" (there is none)
function drains.remove_webhook(keys, args)
  local call, id = calls.open(keys, args), check_webhook(args[3])
  if redis.call('HDEL', call.prefix .. 'webhooks', id) == 0 then return 'gone' end
  close.call(call)
  return 'ok'
end

-- pause_webhook(keys, argv): pause or resume a webhook, for the workers that post tasks.
--   argv  3 id  4 paused (0, 1)
--   out   whether it was paused: 0 or 1; -1: no such webhook
function drains.pause_webhook(keys, args)
  local call, id, paused = calls.open(keys, args), check_webhook(args[3]), check_whole(args[4], 'paused', 0, 1)
  local packed = redis.call('HGET', call.prefix .. 'webhooks', id)
  if not packed then return -1 end
  local webhook = WEBHOOK.unpack(packed)
  local previous = webhook.paused
  if previous ~= paused then
    webhook.paused = paused
    save(call, id, webhook)
  end
  return previous
end

-- webhooks(keys, argv): all webhooks of the queue.
--   out   per webhook: id, WEBHOOK; in no order
function reads.webhooks(keys, args)
  local call = calls.ask(keys, args)
  return redis.call('HGETALL', call.prefix .. 'webhooks')
end
