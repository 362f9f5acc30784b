-- A worker that stops gives its jobs back; this counts against nobody. Returns how many were its own to give.
-- a: worker, jobs[], reason, delay_ms
local count = 0
for _, job in ipairs(a.jobs) do
  if give_back(job, a.worker, a.reason, a.delay_ms) then count = count + 1 end
end
flush()
return count
