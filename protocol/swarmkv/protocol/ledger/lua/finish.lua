-- Writes results, each once: an attempt that no longer holds its branch is refused. Returns {1|0, ...}.
-- a: worker, items[{run, index, attempt, state, result, shown}]
local answers = {}
for position, item in ipairs(a.items) do
  local run, index, attempt = item[1], item[2], item[3]
  if branch_is_held(run, index, attempt, a.worker) then
    release(branch_job(run, index, attempt))
    close_branch(run, index, attempt, item[4], item[5], item[6])
    redis.call('HINCRBY', K.STATS, 'branches_' .. item[4], 1)
    answers[position] = 1
  else
    answers[position] = 0
  end
end
flush_events()
return answers
