-- A worker says what its snapshot store holds. Redis adds what it knows: for which documents and models a snapshot was
-- made, how many branches continued from it and when, and whether a run that has not ended needs it. Returns 1.
-- a: store, about, snapshots[{key, used_ms, ...}], ttl_ms
local needed = {}
for _, snapshot in ipairs(needed_snapshots()) do needed[snapshot] = true end

for _, snapshot in ipairs(a.snapshots) do
  local documents, models, hits = {}, {}, 0
  for _, prefix in ipairs(redis.call('SMEMBERS', K.snapshot(snapshot.key))) do
    local f = redis.call('HMGET', K.prefix(prefix), 'snapshot', 'document', 'model', 'hits', 'used_ms')
    if f[1] == snapshot.key then
      documents[#documents + 1], models[#models + 1] = f[2] or nil, f[3] or nil
      hits = hits + tonumber(f[4] or 0)
      snapshot.used_ms = math.max(snapshot.used_ms, tonumber(f[5] or 0))
    end
  end
  snapshot.documents, snapshot.models, snapshot.hits = documents, models, hits
  snapshot.is_needed = needed[snapshot.key] or false
end

local key = K.store(a.store)
redis.call('HSET', key, 'about', a.about, 'snapshots', cmsgpack.pack(a.snapshots), 'reported_ms', now)
redis.call('PEXPIRE', key, a.ttl_ms)
redis.call('ZADD', K.STORES, now, a.store)
redis.call('ZREMRANGEBYSCORE', K.STORES, '-inf', now - 3600000)
return 1
