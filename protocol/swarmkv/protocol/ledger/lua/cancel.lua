-- Ends every open branch of a run as cancelled. Returns 'cancelled', 'finished' or 'unknown'.
-- a: run
if redis.call('EXISTS', K.run(a.run)) == 0 then return 'unknown' end
if tonumber(redis.call('HGET', K.run(a.run), 'open')) == 0 then return 'finished' end
end_open_branches(a.run, 'cancelled', 'cancelled', nil)
flush_events()
return 'cancelled'
