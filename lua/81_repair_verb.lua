-- The verb `repair` (68_repair.lua), and its last job.
do

local jobs, part = repairs.jobs, repairs.part

-- No lease could be extended meanwhile: what had not run out when the repair began has a whole lease from its end.
function jobs.renew(call)
  local q, totals, is_last = call.queue, call.repair.totals, true
  if call.now <= call.repair.number then return true end
  totals.renewed_to = totals.renewed_to or call.now + q.lease_ms
  for _, name in ipairs({'leases', 'extended'}) do
    local deadlines = {}
    for _, member in ipairs(redis.call('ZRANGE', key(call, name), text(call.repair.number),
        '(' .. text(totals.renewed_to), 'BYSCORE', 'LIMIT', 0, repairs.PAGE)) do
      deadlines[#deadlines + 1], deadlines[#deadlines + 2], is_last = text(totals.renewed_to), member, false
    end
    write('ZADD', key(call, name), deadlines)
    call.repair.left = call.repair.left - #deadlines / 2
  end
  return is_last
end

-- repair(keys, argv): mend some of what is wrong in a queue, which is blocked until all is.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 number of the repair (empty: begin one, or go on with the one that is under way)
--   out   "more" | "done" | "gone" (that repair is over), number, what is looked at now, then per kind of mended
--         faults: kind, count
--   flags allow-oom
function verbs.repair(keys, args)
  local call = calls.open_any(keys, args)
  local q, given = call.queue, args[3] ~= '' and check_whole(args[3], 'number', 0, HORIZON_MS)
  local number = tonumber(redis.call('HGET', key(call, 'repair'), 'number') or -1)
  if given and given ~= number then return {'gone', given, ''} end
  local r = repairs.load(call)
  local is_done = repairs.work(call)
  local doing = redis.call('LINDEX', part(call, 'jobs'), 0) or ''
  if is_done then
    repairs.forget(call)
    q.blocked, call.readied = bit.band(q.blocked, bit.bnot(BLOCKED_REPAIR)), q.servable > 0
  else
    repairs.save(call)
  end
  calls.close(call)
  local out = {is_done and 'done' or 'more', r.number, doing:match('^%S*')}
  for kind, count in pairs(r.mended) do out[#out + 1], out[#out + 2] = kind, count end
  return out
end

end
