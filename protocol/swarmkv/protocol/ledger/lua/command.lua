-- Tells a worker something: at most once, and not after `life_ms`. Returns 'asked', 'nobody' or 'busy'.
-- a: id, worker, spec, life_ms, keep_ms, max_waiting, max_kept
local key, inbox = K.command(a.id), K.inbox(a.worker)
if redis.call('EXISTS', key) == 1 then return 'asked' end -- the answer to the first try was lost
if redis.call('EXISTS', K.worker(a.worker)) == 0 then return 'nobody' end
redis.call('ZREMRANGEBYSCORE', inbox, '-inf', now)
if redis.call('ZCARD', inbox) >= a.max_waiting then return 'busy' end
redis.call('HSET', key, 'worker', a.worker, 'spec', a.spec, 'state', 'waiting', 'asked_ms', now,
  'until_ms', now + a.life_ms, 'ended_ms', 0)
redis.call('PEXPIRE', key, a.keep_ms)
redis.call('ZADD', inbox, now + a.life_ms, a.id)
keep(inbox, a.life_ms)
redis.call('ZADD', K.COMMANDS, now, a.id)
redis.call('ZREMRANGEBYSCORE', K.COMMANDS, '-inf', now - a.keep_ms)
redis.call('PEXPIRE', K.COMMANDS, a.keep_ms)
local excess = redis.call('ZCARD', K.COMMANDS) - a.max_kept
if excess > 0 then
  for _, id in ipairs(redis.call('ZRANGE', K.COMMANDS, 0, excess - 1)) do
    redis.call('ZREM', K.COMMANDS, id)
    redis.call('DEL', K.command(id))
  end
end
redis.call('PUBLISH', K.CONTROL, 'c:' .. a.worker)
return 'asked'
