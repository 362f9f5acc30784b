-- A worker that stops gives its jobs back; this counts against nobody. Returns how many were its own to give.
-- a: worker, jobs[], reason, delay_ms
local count = 0
for _, job in ipairs(a.jobs) do
  local kind, id, second, third = split_job(job)
  if kind == 'b' and branch_is_held(id, second, third, a.worker) then
    redis.call('ZREM', K.LEASES, job)
    local attempt = queue_branch(id, second, redis.call('HGET', K.run(id), 'model'), a.delay_ms * 1000 + second)
    event(id, {type = 'branch_restarted', branch = redis.call('HGET', K.branch(id, second), 'name'),
      attempt = attempt, reason = a.reason})
    count = count + 1
  elseif kind == 'p' and prefill_is_held(id, second, a.worker) then
    redis.call('ZREM', K.LEASES, job)
    queue_prefill(id, redis.call('HGET', K.prefix(id), 'owner'), a.delay_ms)
    count = count + 1
  end
end
flush_events()
return count
