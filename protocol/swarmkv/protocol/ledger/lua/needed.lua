-- Shared by the scripts that ask what may be evicted.

-- The snapshots that runs need which have not ended.
local function needed_snapshots()
  local seen, list = {}, {}
  for _, run in ipairs(redis.call('ZRANGE', K.ACTIVE, 0, -1)) do
    local prefix = redis.call('HGET', K.run(run), 'prefix')
    if prefix then
      local f = redis.call('HMGET', K.prefix(prefix), 'state', 'snapshot')
      if f[1] == 'ready' and f[2] and not seen[f[2]] then
        seen[f[2]] = true
        list[#list + 1] = f[2]
      end
    end
  end
  return list
end
