-- Ends open branches of a run as cancelled: all of them, or those that are named. Returns {status, name...}: the
-- status is 'cancelled', 'finished' (the run had ended) or 'unknown', the names are those of the branches.
-- a: run, names[]
local open = tonumber(redis.call('HGET', K.run(a.run), 'open'))
if not open then return {'unknown'} end
if open == 0 then return {'finished'} end
if #a.names == 0 then redis.call('HSET', K.run(a.run), 'is_cancelled', 1) end
local ended = end_open_branches(a.run, 'cancelled', 'cancelled', nil, a.names)
flush()
return {'cancelled', unpack(ended)}
