-- Priorities: the order of a tenant's ready tasks.
--
-- They stand in the sorted set `ready:<tenant>`: by priority, 0 (most urgent) to 99, and then in order of
-- `queue.sequence`, which counts up. Those that go to the head have it with a minus sign. Tasks of groups stand apart
-- (tasks/group_order.lua). Priorities order a tenant's own tasks only; the fair pick does not read them.

local PRIORITY_SPAN = 2 ^ 42  -- in the scores of ready and pending tasks, of one priority

-- The score of a task of that priority and place.
function priorities.score(priority, order) return priority * PRIORITY_SPAN + order end

-- The key of a tenant's ready tasks, but for those of groups.
function priorities.ready_key(call, tenant) return call.prefix .. 'ready:' .. tenant end
