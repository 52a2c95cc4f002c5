"""How fairq waits, sends and reads: turns of the scheduler, coroutines without a task, sockets, websockets."""
