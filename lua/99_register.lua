-- The verbs: name, function, flags. Names carry the version: `fq<VERSION>_<verb>` (the loader sets VERSION).

local WRITES, DRAINS, READS = {}, {'allow-oom'}, {'no-writes'}

local function register(verb, callback, flags)
  redis.register_function{function_name = 'fq' .. VERSION .. '_' .. verb, callback = callback, flags = flags}
end

register('enqueue', enqueue, WRITES)
register('claim', claim, DRAINS)
register('settle', settle, DRAINS)
register('tick', tick, DRAINS)
register('set_weight', set_weight, DRAINS)
register('pause', pause, DRAINS)
register('resume', resume, DRAINS)
register('configure', configure, DRAINS)
register('replay', replay, WRITES)
register('purge', purge, DRAINS)
register('schedule', schedule, WRITES)
register('unschedule', unschedule, DRAINS)
register('pause_schedule', pause_schedule, DRAINS)
register('resume_schedule', resume_schedule, DRAINS)
register('fire', fire, WRITES)
register('depth', depth, READS)
register('tenants', tenants, READS)
register('tasks', tasks, READS)
register('dead', dead, READS)
register('schedules', schedules, READS)
