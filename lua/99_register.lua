-- The verbs and their flags. Names carry the version: `fq_<VERSION>_<verb>` (the loader sets VERSION).

do

local WRITES, DRAINS, READS = {}, {'allow-oom'}, {'no-writes'}

local function register(verb, flags)
  redis.register_function{function_name = 'fq_' .. VERSION .. '_' .. verb, callback = verbs[verb], flags = flags}
end

register('enqueue', WRITES)
register('claim', DRAINS)
register('settle', DRAINS)
register('tick', DRAINS)
register('cancel', DRAINS)
register('reschedule', DRAINS)
register('set_weight', DRAINS)
register('set_limits', DRAINS)
register('set_opening_hours', DRAINS)
register('pause', DRAINS)
register('resume', DRAINS)
register('configure', DRAINS)
register('replay', WRITES)
register('open_batch', WRITES)
register('close_batch', DRAINS)
register('cancel_batch', DRAINS)
register('purge', DRAINS)
register('make_queue', WRITES)
register('block_queue', DRAINS)
register('empty_queue', DRAINS)
register('drop_queue', DRAINS)
register('add_queue', WRITES)
register('remove_queue', DRAINS)
register('repair', DRAINS)
register('schedule', WRITES)
register('unschedule', DRAINS)
register('pause_schedule', DRAINS)
register('resume_schedule', DRAINS)
register('fire', WRITES)
register('queue_state', READS)
register('tenants', READS)
register('tasks', READS)
register('dead', READS)
register('peek', READS)
register('batches', READS)
register('list_batches', READS)
register('results', READS)
register('dead_letter', READS)
register('events', READS)
register('schedules', READS)
register('limits', READS)
register('opening_hours', READS)
register('why', READS)
register('permissions', READS)

end
