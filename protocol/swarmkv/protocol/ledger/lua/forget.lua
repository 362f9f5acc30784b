-- Snapshots left the store: prefixes that they served are prefilled again when asked for.
-- a: snapshots[]
for _, snapshot in ipairs(a.snapshots) do
  local owner
  for _, prefix in ipairs(redis.call('SMEMBERS', K.snapshot(snapshot))) do
    local f = redis.call('HMGET', K.prefix(prefix), 'state', 'snapshot', 'model')
    owner = owner or f[3]
    if f[1] == 'ready' and f[2] == snapshot then
      redis.call('HSET', K.prefix(prefix), 'state', 'absent')
    end
  end
  redis.call('DEL', K.snapshot(snapshot))
  count(owner, 'evictions')
end
flush()
return #a.snapshots
