-- Appends events to the streams of runs that have not ended: their end is the last word. a: entries[{run, packed list of events}]
local written = 0
for _, entry in ipairs(a.entries) do
  if tonumber(redis.call('HGET', K.run(entry[1]), 'open') or 0) > 0 then
    write_events(entry[1], entry[2])
    written = written + 1
  end
end
return written
