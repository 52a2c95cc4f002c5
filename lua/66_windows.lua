-- Windows by the clock: a tenant, or the whole queue, is served only while its window is open.
--
-- A window is a text that only servers understand (fairq/windows.py). Kept here with it: whether it is open now, and
-- when that changes. A tenant or queue whose window is closed is blocked: it keeps its tasks and costs the draw
-- nothing. A tick counts the windows that are to open or close. A server then reads them, works out when each changes
-- next, and sets them again. It sends along the head that it has read, so that of several servers only the first
-- changes it.

do

local TURNS_PER_CALL = 100

-- set_windows(keys, argv): say when a tenant, or the queue, is open.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 tenant (empty: the queue)  4 text (empty: always open)  5 is_open (0, 1)  6
--         changes_at (ms) 7 head, as it was read (empty: whatever it is)
--   out   the text until now (empty: it was always open), or false if the head has changed: another call was first
--   flags allow-oom
function verbs.set_windows(keys, args)
  local call, name, windows, is_open = calls.open_made(keys, args), args[3], args[4], args[5] == '1'
  local changes_at = tonumber(args[6])
  if name ~= '' then check_tenant(name) end
  if args[5] ~= '0' and args[5] ~= '1' then refuse('bad_request', 'is_open') end
  if not (changes_at and changes_at >= 0 and changes_at <= HORIZON_MS) then refuse('bad_request', 'changes_at') end
  if #windows > 2048 then refuse('bad_request', 'windows') end
  local head = redis.call('HGET', key(call, 'windows'), name) or ''
  if args[7] ~= '' and args[7] ~= head then return false end
  if windows == '' then
    redis.call('HDEL', key(call, 'windows'), name)
    redis.call('ZREM', key(call, 'turns'), name)
  else
    redis.call('HSET', key(call, 'windows'), name, WINDOW.pack({is_open = tonumber(args[5]), changes_at = changes_at,
      text = windows}))
    redis.call('ZADD', key(call, 'turns'), changes_at, name)
  end
  limits.bar_named(call, name, BLOCKED_CLOSED, windows ~= '' and not is_open)
  calls.close(call)
  return head == '' and '' or WINDOW.unpack(head).text
end

-- windows(keys, argv): the windows of some, or those that are to turn now.
--   keys  1 prefix
--   argv  1 now  2 random_values  then names (empty: the queue's); none: up to 100 of those that are to turn
--   out   now_ms, then per window: {tenant (empty: the queue), head}; those without windows are left out
function verbs.windows(keys, args)
  local call = calls.ask(keys, args)
  local names, out = {unpack(args, 3)}, {call.now}
  if #names == 0 then
    names = redis.call('ZRANGE', key(call, 'turns'), '-inf', call.now, 'BYSCORE', 'LIMIT', 0, TURNS_PER_CALL)
  end
  for _, name in ipairs(names) do
    local head = redis.call('HGET', key(call, 'windows'), name)
    if head then out[#out + 1] = {name, head} end
  end
  return out
end

end
