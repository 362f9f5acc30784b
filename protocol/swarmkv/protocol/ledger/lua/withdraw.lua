-- Who asked waits no longer: a command that was not taken yet never will be. Returns {state it was in, answer or ''}.
-- a: id, worker
local key = K.command(a.id)
local f = redis.call('HMGET', key, 'state', 'answer')
if f[1] == 'waiting' then
  redis.call('HSET', key, 'state', 'expired', 'ended_ms', now)
  redis.call('ZREM', K.inbox(a.worker), a.id)
end
return {f[1] or 'unknown', f[2] or ''}
