-- A worker that stops is taken off the list. What is still leased to it is queued again, which counts against nobody:
-- it may never have heard of it, or what it said of it was lost. Returns how many jobs that were.
-- a: worker, reason
local count = 0
for _, job in ipairs(redis.call('ZRANGE', K.LEASES, 0, -1)) do
  if give_back(job, a.worker, a.reason, 0) then count = count + 1 end
end
redis.call('ZREM', K.WORKERS, a.worker)
redis.call('DEL', K.worker(a.worker))
flush()
return count
