-- What operators change, and what tenants set: who did what, when, from where. Its prefix is not a queue's but
-- `fq:{audit}`, or `fq:{audit-of-tenants}`: tenants that change much push nothing of the operators' out. Each tenant
-- has a part of the latter, so that none pushes out the others'.
--
-- A change is begun here, carried out elsewhere (in any slot, in any number of calls), and ended here. So it leaves a
-- trace wherever its server dies. One that nobody has ended for a while is kept as one whose outcome is not known.

do

local LOST_MS = 300000      -- after which nobody will end a change that has begun
local MAX_BEGUN, KEPT = 1000, 10000
local PART = 200            -- changes of each tenant, among the KEPT of the tenants' audit
local MOVED_PER_CALL = 10
local MAX_BYTES = 8192      -- of a change: a server writes at most half of that
local UNKNOWN = '{"outcome":"unknown"}'

local function open_audit(keys, args)
  local call = {prefix = keys[1], random_values = args[2]}
  call.now = calls.clock_ms(call, args[1])
  return call
end

-- Checks what a change is: `first` is the place of its first argument.
local function check_change(args, first)
  local bytes = 0
  if #args ~= first + 4 then refuse('bad_request', 'change') end
  for i = first, #args do bytes = bytes + #args[i] end
  if bytes > MAX_BYTES then refuse('bad_request', 'change') end
end

local function keep(call, fields)
  return redis.call('XADD', key(call, 'changes'), 'MAXLEN', '~', KEPT, '*', unpack(fields))
end

local function forget(call, tenant, id)
  redis.call('XDEL', key(call, 'changes'), id)
  redis.call('ZREM', key(call, 'of_tenants'), tenant .. '/' .. id)
end

-- Keeps what a tenant has changed: the oldest goes, its own if it has its part already.
local function keep_own(call, tenant, fields)
  local ids = key(call, 'of_tenants')
  local own = redis.call('ZRANGE', ids, '[' .. tenant .. '/', '(' .. tenant .. '0', 'BYLEX')  -- 0 is next to the slash
  if #own >= PART then
    forget(call, tenant, own[1]:sub(#tenant + 2))
  elseif redis.call('XLEN', key(call, 'changes')) >= KEPT then
    local entry = redis.call('XRANGE', key(call, 'changes'), '-', '+', 'COUNT', 1)[1]
    forget(call, entry[2][10], entry[1])
  end
  local id = redis.call('XADD', key(call, 'changes'), '*', unpack(fields))
  redis.call('ZADD', ids, 0, tenant .. '/' .. id)
  return id
end

-- Keeps those that have begun longest as lost: they are old, or there are too many.
local function move_lost(call)
  local surplus = redis.call('XLEN', key(call, 'begun')) - MAX_BEGUN + 1
  for n, entry in ipairs(redis.call('XRANGE', key(call, 'begun'), '-', '+', 'COUNT', MOVED_PER_CALL)) do
    local fields = entry[2]
    if n > surplus and tonumber(fields[2]) > call.now - LOST_MS then return end
    fields[#fields + 1] = 'ended'
    fields[#fields + 1] = UNKNOWN
    keep(call, fields)
    redis.call('XDEL', key(call, 'begun'), entry[1])
  end
end

-- begin_change(keys, argv): note a change that is about to be carried out.
--   keys  1 prefix of the audit
--   argv  1 now  2 random_values  3 token  4 verb  5 queue  6 whose (a tenant)  7 the rest, as JSON
--   out   its id, now_ms
--   flags allow-oom
function verbs.begin_change(keys, args)
  local call = open_audit(keys, args)
  check_change(args, 3)
  move_lost(call)
  local fields = {'at', text(call.now), 'token', args[3], 'verb', args[4], 'queue', args[5], 'tenant', args[6],
                  'change', args[7]}
  return {redis.call('XADD', key(call, 'begun'), '*', unpack(fields)), call.now}
end

-- end_change(keys, argv): note what has become of a change. It may have been kept as lost meanwhile.
--   keys  1 prefix of the audit
--   argv  1 now  2 random_values  3 id  4 when it began (ms; 0: now, a tenant's, which is only noted here)
--         5 how it ended, as JSON  6 token  7 verb  8 queue  9 whose (a tenant)  10 the rest, as JSON
--   out   the id under which it is kept
--   flags allow-oom
function verbs.end_change(keys, args)
  local call = open_audit(keys, args)
  check_change(args, 6)
  if not args[3]:find('^%d+%-%d+$') or #args[3] > 32 then refuse('bad_request', 'id') end
  local at = check_whole(args[4], 'at', 0, HORIZON_MS)
  if #args[5] > MAX_BYTES then refuse('bad_request', 'ended') end
  redis.call('XDEL', key(call, 'begun'), args[3])
  local fields = {'at', text(at == 0 and call.now or at), 'token', args[6], 'verb', args[7], 'queue', args[8],
                  'tenant', args[9], 'change', args[10], 'ended', args[5]}
  if at == 0 then return keep_own(call, args[9], fields) end
  return keep(call, fields)
end

end
