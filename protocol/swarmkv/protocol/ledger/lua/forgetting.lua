-- Shared by the scripts that hear of snapshots which are gone.

-- Prefixes that this snapshot served are prefilled again when asked for. Returns the alias of one of them.
local function forget_snapshot(snapshot)
  local owner
  for _, prefix in ipairs(redis.call('SMEMBERS', K.snapshot(snapshot))) do
    local f = redis.call('HMGET', K.prefix(prefix), 'state', 'snapshot', 'model')
    owner = owner or f[3]
    if f[1] == 'ready' and f[2] == snapshot then
      redis.call('HSET', K.prefix(prefix), 'state', 'absent')
    end
  end
  redis.call('DEL', K.snapshot(snapshot))
  return owner
end
