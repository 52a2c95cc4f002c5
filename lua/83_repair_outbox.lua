-- Repair (68_repair.lua): the outbox. A record whose name is that of a dead letter is that letter's address; all others
-- are to be delivered, and due some time.
do

local jobs, note = repairs.jobs, repairs.note

-- What tenants keep in the outbox. A record that no server would deliver is due now.
function jobs.outbox(call, job)
  local flat, is_last = repairs.scan(call, job, 'outbox', 10)
  local due = key(call, 'outbox_due')
  for i = 1, #flat, 2 do
    local record = OUTBOX.unpack(flat[i + 1])
    repairs.add_kept(call, record.tenant, links.bytes_of(record))
    if redis.call('HEXISTS', key(call, 'dead'), flat[i]) == 0 then
      local sums = repairs.kept(call, 'sums', SUMS, record.tenant)
      sums.links = sums.links + 1
      note(call, 'links', redis.call('ZADD', due, 'NX', text(call.now), flat[i]))
    end
  end
  return is_last
end

-- What is due and is no record, or an address.
function jobs.links(call, job)
  return repairs.prune_set(call, job, 'outbox_due', 'links', function(names)
    local known = redis.call('HMGET', key(call, 'outbox'), unpack(names))
    local deaths, is_right = redis.call('HMGET', key(call, 'dead'), unpack(names)), {}
    for i, name in ipairs(names) do is_right[name] = known[i] and not deaths[i] end
    return function(name) return is_right[name] end
  end)
end

end
