-- A worker takes the commands that wait for it: each is given out once. Returns {{id, spec}...}.
-- a: worker
local inbox = K.inbox(a.worker)
local taken = {}
for _, id in ipairs(redis.call('ZRANGE', inbox, 0, -1)) do
  local key = K.command(id)
  local f = redis.call('HMGET', key, 'spec', 'state', 'until_ms', 'worker')
  if f[2] == 'waiting' and f[4] == a.worker then
    if tonumber(f[3]) > now then
      redis.call('HSET', key, 'state', 'taken')
      taken[#taken + 1] = {id, f[1]}
    else
      redis.call('HSET', key, 'state', 'expired', 'ended_ms', now)
    end
  end
end
redis.call('DEL', inbox)
return taken
