-- Snapshots left the store: prefixes that they served are prefilled again when asked for.
-- a: snapshots[]
for _, snapshot in ipairs(a.snapshots) do
  for _, prefix in ipairs(redis.call('SMEMBERS', K.snapshot(snapshot))) do
    local f = redis.call('HMGET', K.prefix(prefix), 'state', 'snapshot')
    if f[1] == 'ready' and f[2] == snapshot then
      redis.call('HSET', K.prefix(prefix), 'state', 'absent')
    end
  end
  redis.call('DEL', K.snapshot(snapshot))
end
return #a.snapshots
