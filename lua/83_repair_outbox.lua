-- Repair (68_repair.lua): the outbox. A record whose name is that of a dead letter is that letter's address; all others
-- are to be delivered, and due some time.
do

local jobs, note = repairs.jobs, repairs.note

-- What tenants keep in the outbox. A record that no server would deliver is due now.
function jobs.outbox(call, job)
  local flat, is_last = repairs.scan(call, job, 'outbox', 10)
  for i = 1, #flat, 2 do
    local record = OUTBOX.unpack(flat[i + 1])
    repairs.add_kept(call, record.tenant, links.bytes_of(record))
    if redis.call('HEXISTS', key(call, 'dead'), flat[i]) == 0 then
      local sums = repairs.kept(call, 'sums', SUMS, record.tenant)
      sums.links = sums.links + 1
      note(call, 'links', redis.call('ZADD', links.of(call, record.tenant), 'NX', text(call.now), flat[i]))
    end
  end
  return is_last
end

function jobs.links(call, job)
  local flat, is_last = repairs.scan(call, job, 'tenants')
  for i = 1, #flat, 2 do
    if redis.call('EXISTS', links.of(call, flat[i])) == 1 then repairs.ask(call, 'linked', flat[i]) end
  end
  return is_last
end

-- Sees that `outbox_due` says when a tenant's first link is due, or earlier.
local function mend_due(call, name)
  local first = redis.call('ZRANGE', links.of(call, name), 0, 0, 'WITHSCORES')[2]
  if not first then return end
  local due = redis.call('ZSCORE', key(call, 'outbox_due'), name)
  if not due or tonumber(due) > math.max(tonumber(first), call.now) then
    redis.call('ZADD', key(call, 'outbox_due'), first, name)
    note(call, 'links', 1)
  end
end

-- Of a tenant: takes out what is no record, another tenant's, or an address.
function jobs.linked(call, job)
  local is_done = repairs.prune_set(call, job, 'links:' .. job.rest, 'links', function()
    return function(name)
      local record = links.find(call, name)
      return record and record.tenant == job.rest and redis.call('HEXISTS', key(call, 'dead'), name) == 0
    end
  end)
  if is_done then mend_due(call, job.rest) end
  return is_done
end

function jobs.outbox_due(call, job)
  return repairs.prune_set(call, job, 'outbox_due', 'links', function()
    return function(name) return redis.call('EXISTS', links.of(call, name)) == 1 end
  end)
end

end
