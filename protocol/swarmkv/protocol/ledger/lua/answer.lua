-- A worker says what came of a command. Returns 1, or 0 if it was not this worker's to answer.
-- a: id, worker, answer, state, wait_ms
local key = K.command(a.id)
local f = redis.call('HMGET', key, 'state', 'worker')
if f[1] ~= 'taken' or f[2] ~= a.worker then return 0 end
redis.call('HSET', key, 'state', a.state, 'answer', a.answer, 'ended_ms', now)
redis.call('XADD', K.answer(a.id), '*', 'a', a.answer)
redis.call('PEXPIRE', K.answer(a.id), a.wait_ms)
return 1
